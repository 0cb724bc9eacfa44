"""An interruption gets a rank out of a blocked receive, whatever its main thread holds, and touches no
other socket."""

from __future__ import annotations

import pytest

PRELUDE = """
    import os, socket, sys, threading, time
    from taskd.cython_api import slot, sockets

    def pair(family=socket.AF_INET):
        with socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family) as server:
            one = socket.create_connection(server.getsockname()[:2])
            return one, server.accept()[0]

    def say(*words):
        print(*words, flush=True)
"""


def test_blocked_receive(page, ranks, line):
    rank = ranks.start("""
    bystander = pair()
    sockets.begin(0)
    covered, local, listening = pair(), socket.socketpair(), socket.create_server(("127.0.0.1", 0))
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagram.connect(("127.0.0.1", 9))
    assert sockets.end() == 2
    later = pair()
    say("blocked")
    say("out", covered[0].recv(1))
    for one, other in (bystander, later, local):
        one.sendall(b"x")
        assert other.recv(1) == b"x"
    client = socket.create_connection(listening.getsockname())
    listening.accept()[0].sendall(b"y")
    assert client.recv(1) == b"y"
    assert os.fstat(covered[0].fileno()), "shut, not closed"
    say("others fine")
    """)
    assert line(rank) == "blocked"
    page.interrupt(1, 0)
    assert line(rank) == "out b''"
    assert line(rank) == "others fine"
    assert rank.wait(60) == 0


def test_while_the_interpreter_is_stuck(page, ranks, line):
    """The main thread blocks inside C with the interpreter's lock held: nothing in Python could
    help."""
    rank = ranks.start("""
    import ctypes
    sockets.begin(0)
    one, other = pair()
    assert sockets.end() == 2
    say("stuck")
    say("out", ctypes.PyDLL(None).recv(one.fileno(), ctypes.create_string_buffer(1), 1, 0))
    """)
    assert line(rank) == "stuck"
    page.interrupt(1)
    assert line(rank) == "out 0"


def test_an_older_pause_does_not_count(page, ranks, line):
    page.interrupt(3)
    rank = ranks.start("""
    sockets.begin(3)
    one, other = pair()
    assert sockets.end() == 2
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    say("fine")
    say("out", one.recv(1))
    """)
    assert line(rank) == "fine"
    page.interrupt(4)
    assert line(rank) == "out b''"


def test_pause_already_newer_at_begin(page, ranks):
    """Connections that appear between begin and end are cut as they come."""
    page.interrupt(1)
    ranks.ran("""
    families = [socket.AF_INET, socket.AF_INET]  # twice: the second time the thread is already there, and asleep
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        families.append(socket.AF_INET6)
    except OSError:
        pass
    for family in families:
        sockets.begin(0)
        for _ in range(3):
            one, other = pair(family)
            assert one.recv(1) == b""
        sockets.end()
        time.sleep(0.05)  # the thread goes to sleep; the test is as true, only weaker, when it has not yet
    one, other = pair()
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    """)


def test_pause_during_the_build(page, ranks, line):
    rank = ranks.start("""
    sockets.begin(0)
    one, other = pair()
    say("building")
    say("out", one.recv(1))
    one, other = pair()
    say("out", one.recv(1))
    sockets.begin(1)
    one, other = pair()
    say(sockets.end(), sockets.cut(), sockets.cut())
    """)
    assert line(rank) == "building"
    page.interrupt(1)
    assert line(rank) == "out b''"
    assert line(rank) == "out b''"
    assert line(rank) == "2 2 0"


def test_pause_already_newer_at_end(page, ranks, line):
    rank = ranks.start("""
    sockets.begin(0)
    say("begun")
    input()
    one, other = pair()
    sockets.end()
    say("out", one.recv(1))
    """)
    line(rank)
    page.interrupt(1)
    rank.stdin.write("\n")
    rank.stdin.flush()
    assert line(rank) == "out b''"


def test_a_number_used_again_is_not_touched(ranks):
    ranks.ran("""
    sockets.begin(0)
    one, other = pair()
    assert sockets.end() == 2
    numbers = one.fileno(), other.fileno()
    one.close(), other.close()
    again = pair()
    for new, number in zip(again, numbers):
        os.dup2(new.fileno(), number)
    assert sockets.cut() == 0
    again[0].sendall(b"x")
    assert again[1].recv(1) == b"x"
    """)


def test_clear_and_misuse(page, ranks):
    ranks.ran("""
    import errno
    def number(call, *args):
        try:
            call(*args)
        except OSError as error:
            return error.errno
    assert number(sockets.end) == errno.EINVAL
    sockets.begin(0)
    one, other = pair()
    sockets.end()
    sockets.clear()
    assert sockets.cut() == 0
    slot.detach()
    assert number(sockets.begin, 0) == errno.ENOTCONN
    sockets.clear()
    assert sockets.cut() == 0
    slot.attach(os.environ["TASKD_PAGE"], 0)
    sockets.begin(0)
    one, other = pair()
    assert sockets.end() == 2 and sockets.cut() == 2
    """)


@pytest.mark.parametrize("newer", [False, True])
def test_begin_and_end_many_times(page, ranks, newer):
    """The thread sleeps on a word that only the agent changes; begin, end and detach must never
    wait for it in vain."""
    if newer:
        page.interrupt(1)
    ranks.ran("""
    for round in range(300):
        sockets.begin(0)
        sockets.end()
        if round % 10 == 0:
            slot.detach()
            slot.attach(os.environ["TASKD_PAGE"], 0)
    """)


def test_forked_child_leaves_the_parents_connections(page, ranks):
    ranks.ran(
        """
    sockets.begin(0)
    one, other = pair()
    sockets.end()
    pid = os.fork()
    if pid == 0:
        os._exit(sockets.cut())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    assert sockets.cut() == 2
    """,
        "-W",
        "ignore",
    )


def test_the_list_of_covered_connections(ranks):
    ranks.ran("""
    assert sockets.covered() == []
    bystander = pair()
    sockets.begin(0)
    covered = [end for _ in range(50) for end in pair()]
    assert sockets.covered() == [], "not before end"
    assert sockets.end() == 100
    later = pair()
    assert sorted(sockets.covered()) == sorted(end.fileno() for end in covered)
    os.dup2(later[0].fileno(), covered[-1].fileno())
    assert sorted(sockets.covered()) == sorted(end.fileno() for end in covered[:-1])
    sockets.cut()
    assert len(sockets.covered()) == 99, "those that have ended can still be asked why"
    sockets.clear()
    assert sockets.covered() == []
    """)


def test_limit_of_unacknowledged_time(ranks):
    out = ranks.ran("""
    def limit_of(end):
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    def covered_pair():
        sockets.begin(0)
        ends = pair()
        sockets.end()
        return ends

    assert [limit_of(end) for end in covered_pair()] == [0, 0]
    sockets.limit(12_345)
    bystander, ends = pair(), covered_pair()
    assert [limit_of(end) for end in ends] == [12_345] * 2
    assert [limit_of(end) for end in bystander] == [0, 0]
    sockets.limit(0)
    assert [limit_of(end) for end in covered_pair()] == [0, 0]
    try:
        sockets.limit(2**31)
    except OSError as error:
        say(error.strerror)
    sockets.limit(12_345)
    ends = covered_pair()
    assert sockets.cut() == 2, "a cut works as without"
    assert ends[0].recv(1) == b""
    """)
    assert "0 to 2147483647" in out


def test_another_communicator_beside_the_covered_one(page, ranks, line):
    """What is covered stays so, and nothing that was open before joins it."""
    rank = ranks.start("""
    with sockets.extended():  # nothing is covered: nothing happens
        pass
    assert sockets.covered() == []
    sockets.begin(0)
    first = pair()
    with sockets.extended():  # it is being made
        second = pair()
    assert sockets.end() == 4
    bystander = pair()
    try:
        with sockets.extended():
            third = pair()
            raise KeyError
    except KeyError:
        pass
    assert len(sockets.covered()) == 6
    say("blocked")
    say("out", *(one.recv(1) for one, _ in (first, second, third)))
    bystander[0].sendall(b"x")
    say(bystander[1].recv(1))
    """)
    assert line(rank) == "blocked"
    page.interrupt(1, 0)
    assert line(rank) == "out b'' b'' b''"
    assert line(rank) == "b'x'"
    assert rank.wait(60) == 0


def test_an_interruption_while_another_communicator_is_made(page, ranks, line):
    rank = ranks.start("""
    sockets.begin(0)
    first = pair()
    sockets.end()
    with sockets.extended():
        second = pair()
        say("made")
        say("out", first[0].recv(1), second[0].recv(1))
    """)
    assert line(rank) == "made"
    page.interrupt(1, 0)
    assert line(rank) == "out b'' b''"
    assert rank.wait(60) == 0
