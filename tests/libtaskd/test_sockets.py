"""A pause gets a rank out of a blocked receive, whatever its main thread holds, and touches no
other socket."""

from __future__ import annotations

import pytest

PAIR = """
    import os, socket, sys, threading, time
    from taskd.cython_api import core

    def pair(family=socket.AF_INET):
        with socket.create_server(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0), family=family) as server:
            one = socket.create_connection(server.getsockname()[:2])
            return one, server.accept()[0]

    def say(*words):
        print(*words, flush=True)
"""


def test_blocked_receive(page, ranks, line):
    rank = ranks.start(
        PAIR
        + """
    bystander = pair()
    core.sockets_begin(0)
    covered, local, listening = pair(), socket.socketpair(), socket.create_server(("127.0.0.1", 0))
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagram.connect(("127.0.0.1", 9))
    assert core.sockets_end() == 2
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
    """
    )
    assert line(rank) == "blocked"
    page.pause(1, 0)
    assert line(rank) == "out b''"
    assert line(rank) == "others fine"
    assert rank.wait(60) == 0


def test_while_the_interpreter_is_stuck(page, ranks, line):
    """The main thread blocks inside C with the interpreter's lock held: nothing in Python could
    help."""
    rank = ranks.start(
        PAIR
        + """
    import ctypes
    core.sockets_begin(0)
    one, other = pair()
    assert core.sockets_end() == 2
    say("stuck")
    say("out", ctypes.PyDLL(None).recv(one.fileno(), ctypes.create_string_buffer(1), 1, 0))
    """
    )
    assert line(rank) == "stuck"
    page.pause(1)
    assert line(rank) == "out 0"


def test_an_older_pause_does_not_count(page, ranks, line):
    page.pause(3)
    rank = ranks.start(
        PAIR
        + """
    core.sockets_begin(3)
    one, other = pair()
    assert core.sockets_end() == 2
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    say("fine")
    say("out", one.recv(1))
    """
    )
    assert line(rank) == "fine"
    page.pause(4)
    assert line(rank) == "out b''"


def test_pause_already_newer_at_begin(page, ranks):
    """Connections that appear between begin and end are cut as they come."""
    page.pause(1)
    status, out, err = ranks.run(
        PAIR
        + """
    families = [socket.AF_INET, socket.AF_INET]  # twice: the second time the thread is already there, and asleep
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        families.append(socket.AF_INET6)
    except OSError:
        pass
    for family in families:
        core.sockets_begin(0)
        for _ in range(3):
            one, other = pair(family)
            assert one.recv(1) == b""
        core.sockets_end()
        time.sleep(0.05)  # the thread goes to sleep; the test is as true, only weaker, when it has not yet
    one, other = pair()
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    say("done")
    """
    )
    assert (status, out.strip()) == (0, "done"), err


def test_pause_during_the_build(page, ranks, line):
    rank = ranks.start(
        PAIR
        + """
    core.sockets_begin(0)
    one, other = pair()
    say("building")
    say("out", one.recv(1))
    one, other = pair()
    say("out", one.recv(1))
    core.sockets_begin(1)
    one, other = pair()
    say(core.sockets_end(), core.sockets_cut(), core.sockets_cut())
    """
    )
    assert line(rank) == "building"
    page.pause(1)
    assert line(rank) == "out b''"
    assert line(rank) == "out b''"
    assert line(rank) == "2 2 0"


def test_pause_already_newer_at_end(page, ranks, line):
    rank = ranks.start(
        PAIR
        + """
    core.sockets_begin(0)
    say("begun")
    input()
    one, other = pair()
    core.sockets_end()
    say("out", one.recv(1))
    """
    )
    line(rank)
    page.pause(1)
    rank.stdin.write("\n")
    rank.stdin.flush()
    assert line(rank) == "out b''"


def test_a_number_used_again_is_not_touched(ranks):
    status, out, err = ranks.run(
        PAIR
        + """
    core.sockets_begin(0)
    one, other = pair()
    assert core.sockets_end() == 2
    numbers = one.fileno(), other.fileno()
    one.close(), other.close()
    again = pair()
    for new, number in zip(again, numbers):
        os.dup2(new.fileno(), number)
    assert core.sockets_cut() == 0
    again[0].sendall(b"x")
    assert again[1].recv(1) == b"x"
    say("kept")
    """
    )
    assert (status, out.strip()) == (0, "kept"), err


def test_clear_and_misuse(page, ranks):
    status, out, err = ranks.run(
        PAIR
        + """
    import errno
    def number(call, *args):
        try:
            call(*args)
        except OSError as error:
            return error.errno
    assert number(core.sockets_end) == errno.EINVAL
    core.sockets_begin(0)
    one, other = pair()
    core.sockets_end()
    core.sockets_clear()
    assert core.sockets_cut() == 0
    core.detach()
    assert number(core.sockets_begin, 0) == errno.ENOTCONN
    core.sockets_clear()
    assert core.sockets_cut() == 0
    core.attach(os.environ["TASKD_PAGE"], 0)
    core.sockets_begin(0)
    one, other = pair()
    assert core.sockets_end() == 2 and core.sockets_cut() == 2
    say("done")
    """
    )
    assert (status, out.strip()) == (0, "done"), err


@pytest.mark.parametrize("newer", [False, True])
def test_begin_and_end_many_times(page, ranks, newer):
    """The thread sleeps on a word that only the agent changes; begin, end and detach must never
    wait for it in vain."""
    if newer:
        page.pause(1)
    status, out, err = ranks.run(
        PAIR
        + """
    for round in range(300):
        core.sockets_begin(0)
        core.sockets_end()
        if round % 10 == 0:
            core.detach()
            core.attach(os.environ["TASKD_PAGE"], 0)
    say("done")
    """
    )
    assert (status, out.strip()) == (0, "done"), err


def test_forked_child_leaves_the_parents_connections(page, ranks):
    status, out, err = ranks.run(
        PAIR
        + """
    core.sockets_begin(0)
    one, other = pair()
    core.sockets_end()
    pid = os.fork()
    if pid == 0:
        os._exit(core.sockets_cut())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    one.sendall(b"x")
    assert other.recv(1) == b"x"
    assert core.sockets_cut() == 2
    say("done")
    """,
        "-W",
        "ignore",
    )
    assert (status, out.strip()) == (0, "done"), err


def test_the_list_of_covered_connections(ranks):
    status, out, err = ranks.run(
        PAIR
        + """
    assert core.sockets_list() == []
    bystander = pair()
    core.sockets_begin(0)
    covered = [end for _ in range(50) for end in pair()]
    assert core.sockets_list() == [], "not before end"
    assert core.sockets_end() == 100
    later = pair()
    assert sorted(core.sockets_list()) == sorted(end.fileno() for end in covered)
    os.dup2(later[0].fileno(), covered[-1].fileno())
    assert sorted(core.sockets_list()) == sorted(end.fileno() for end in covered[:-1])
    core.sockets_cut()
    assert len(core.sockets_list()) == 99, "those that have ended can still be asked why"
    core.sockets_clear()
    assert core.sockets_list() == []
    say("done")
    """
    )
    assert (status, out.strip()) == (0, "done"), err


def test_limit_of_unacknowledged_time(ranks):
    status, out, err = ranks.run(
        PAIR
        + """
    def limit_of(end):
        return end.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    def covered_pair():
        core.sockets_begin(0)
        ends = pair()
        core.sockets_end()
        return ends

    assert [limit_of(end) for end in covered_pair()] == [0, 0]
    core.sockets_limit(12_345)
    bystander, ends = pair(), covered_pair()
    assert [limit_of(end) for end in ends] == [12_345] * 2
    assert [limit_of(end) for end in bystander] == [0, 0]
    core.sockets_limit(0)
    assert [limit_of(end) for end in covered_pair()] == [0, 0]
    try:
        core.sockets_limit(2**31)
    except OSError as error:
        say(error.strerror)
    core.sockets_limit(12_345)
    ends = covered_pair()
    assert core.sockets_cut() == 2, "a cut works as without"
    assert ends[0].recv(1) == b""
    """
    )
    assert status == 0 and "0 to 2147483647" in out, err
