"""gloo's messages on connections that nothing covers, as a framework makes them: one that breaks off
is completed, so that no thread waits for it, and the process knows it."""

from __future__ import annotations

import pytest

PRELUDE = """
    import os, socket, struct, threading
    from taskd.cython_api import sockets

    def pair():
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            return one, server.accept()[0]

    def header(payload, operation=1):
        return struct.pack("6Q", 48 + payload, operation, 0, 0, payload, 0)

    def breaks(fd, parts):
        try:
            os.writev(fd, parts)
        except OSError:
            return True
        return False

    one, other = pair()
    fd = one.fileno()
"""


@pytest.mark.parametrize(
    "parts", ["[header(100), bytes(100)]", "[header(0, 2)]", "[header(0), b'']"]
)
def test_a_message_to_a_broken_connection(page, ranks, parts):
    ranks.ran(f"""
    parts = {parts}
    assert os.writev(fd, parts) == sum(map(len, parts)) and not sockets.torn()
    one.shutdown(socket.SHUT_RDWR)
    assert os.writev(fd, parts) == sum(map(len, parts)) and sockets.torn()
    sockets.renewed()
    assert not sockets.torn()
    """)


@pytest.mark.parametrize(
    "parts",
    [
        "[bytes(48), bytes(100)]",
        "[header(99), bytes(100)]",
        "[header(100, 4), bytes(100)]",
        "[header(100)[:47], bytes(101)]",
        "[header(100), bytes(50), bytes(50)]",
        "[bytes(100)]",
    ],
)
def test_what_is_no_message_of_gloo_fails_as_always(page, ranks, parts):
    ranks.ran(f"""
    parts = {parts}
    assert os.writev(fd, parts) == sum(map(len, parts))
    one.shutdown(socket.SHUT_RDWR)
    assert breaks(fd, parts) and not sockets.torn()
    """)


def test_the_rest_of_a_message_of_which_a_part_is_written(page, ranks):
    """By the thread that has begun it, or by gloo's own, and by no other."""
    ranks.ran("""
    one.setblocking(False)
    written = os.writev(fd, [header(1 << 26), bytes(1 << 26)])
    assert 48 < written < 1 << 26
    one.shutdown(socket.SHUT_RDWR)
    rest = [bytes(48 + (1 << 26) - written)]
    found = []
    thread = threading.Thread(target=lambda: found.append(breaks(fd, rest)))
    thread.start(); thread.join()
    assert found == [True] and not sockets.torn()
    assert os.writev(fd, rest) == len(rest[0]) and sockets.torn()
    sockets.renewed()
    assert breaks(fd, rest) and not sockets.torn(), "the message was over"

    def loop():
        with open("/proc/thread-self/comm", "w") as name:
            name.write("gloo_tcp_loop")
        found.append(breaks(fd, rest))

    thread = threading.Thread(target=loop)
    thread.start(); thread.join()
    assert found == [True, False] and sockets.torn()
    """)


def test_a_covered_connection_and_one_beside_it(page, ranks):
    """Where connections are covered, those alone count."""
    ranks.ran("""
    sockets.begin(0)
    covered, its_other = pair()
    sockets.end()
    message = [header(100), bytes(100)]
    for line in (one, covered):
        line.shutdown(socket.SHUT_RDWR)
    assert breaks(fd, message) and not sockets.torn()
    assert not breaks(covered.fileno(), message) and sockets.torn()
    """)
