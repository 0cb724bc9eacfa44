"""Listening sockets of a rank in TASKD_PORT_RANGE, which the collective libraries do not know."""

from __future__ import annotations

import json
import socket

import pytest

CODE = """
    import errno, json, os, socket, subprocess, sys

    def listen(host="127.0.0.1", port=0, kind=socket.SOCK_STREAM, reuse=False):
        made = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, kind)
        if reuse:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        if kind == socket.SOCK_STREAM:
            made.listen()
        return made

    def ports(sockets):
        return [s.getsockname()[1] for s in sockets]
"""


def free_range(count: int) -> range:
    """That many ports in a row that nothing has, below those that the system gives out."""
    for lowest in range(20000, 32000, count):
        taken = []
        try:
            for port in range(lowest, lowest + count):
                taken.append(socket.socket())
                taken[-1].bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for each in taken:
                each.close()
        return range(lowest, lowest + count)
    raise AssertionError("no ports are free")


@pytest.fixture
def ask(ranks):
    """What a rank's code prints, as JSON, and the range it had."""

    def run(body, count=30, text=None, **more):
        found = free_range(count)
        given = f"{found[0]}-{found[-1]}" if text is None else text
        code, out, err = ranks.run(
            "\n".join([CODE, *(f"    {line}" for line in body.splitlines())]),
            TASKD_PORT_RANGE=given,
            **more,
        )
        assert code == 0, err
        return json.loads(out), found

    return run


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0"])
def test_any_port_is_one_of_the_range(ask, host, reuse):
    body = f"print(json.dumps(ports([listen({host!r}, reuse={reuse}) for _ in range(10)])))"
    ports, found = ask(body)
    assert len(set(ports)) == 10 and set(ports) <= set(found)


def test_an_option_of_the_socket_stays(ask):
    body = (
        "made = listen(reuse=True)\n"
        "print(json.dumps(made.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR)))"
    )
    assert ask(body)[0] == 1


def test_when_all_are_taken_the_error_says_so(ask):
    body = (
        "made = [listen(reuse=True) for _ in range(20)]\n"
        "try:\n    listen(reuse=True)\n"
        "except OSError as error:\n    print(json.dumps(error.errno == errno.EADDRINUSE))"
    )
    assert ask(body, count=20)[0] is True


def test_a_port_that_is_named_and_other_sockets_are_left_alone(ask):
    body = (
        "named = listen(); port = named.getsockname()[1]; named.close()\n"
        "datagram = listen(kind=socket.SOCK_DGRAM)\n"
        "os.environ['TASKD_PORT_RANGE'] = '1024-1024'\n"
        "again = listen(port=port, reuse=True)\n"
        "print(json.dumps([port == again.getsockname()[1], datagram.getsockname()[1]]))"
    )
    (same, datagram), found = ask(body)
    assert same and datagram not in found


def test_a_rank_s_children_are_no_ranks(ask):
    child = "import socket; s = socket.create_server(('', 0)); print(s.getsockname()[1])"
    body = (
        f"out = subprocess.check_output([sys.executable, '-c', {child!r}])\n"
        "print(json.dumps(int(out)))"
    )
    port, found = ask(body)
    assert port not in found


def test_spaces_around_the_range_do_not_count(ask):
    found = free_range(30)
    ports, _ = ask("print(json.dumps(ports([listen()])))", text=f" {found[0]}-{found[-1]} ")
    assert ports[0] in found


@pytest.mark.parametrize("text", ["", "9700", "9700-", "-9700", "9800-9700", "1-70000", "a-b"])
def test_what_is_no_range_means_any_port(ask, text):
    ports, found = ask("print(json.dumps(ports([listen()])))", text=text)
    assert ports[0] > 0
