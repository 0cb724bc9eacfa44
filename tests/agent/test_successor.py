"""When an agent starts the next manager: it leaves time to the machines before it, but none to one
that says that nobody is left there."""

from __future__ import annotations

import contextlib
import socket
import time

import psutil
import pytest
import zmq

from taskd.agent.manager.successor import FIRST, NEXT, READY, Successor
from taskd.messages import to_agent
from taskd.messages.values import Voting
from taskd.protocol import addresses, keys

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]  # in the order in which they start a manager
PORT = 9  # of their managers; nobody listens there
KEYS = keys.derive(b"a secret of some length")


@pytest.fixture
def listening():
    """Where an agent listens on each host, and what ends it."""
    routers = {host: zmq.Context().socket(zmq.ROUTER) for host in HOSTS}
    places = {h: (h, r.bind_to_random_port(f"tcp://{h}")) for h, r in routers.items()}
    yield places, lambda host: routers[host].context.destroy(linger=0)
    for router in routers.values():
        router.context.destroy(linger=0)


def patience(places, here, gone=(HOSTS[0], PORT)):
    """What the agent on `here` finds out about the loss of the manager at `gone`."""
    successor = Successor(KEYS, here)
    members = {f"agent-{host}": Voting(node, at) for node, (host, at) in enumerate(places.items())}
    at = tuple((host, PORT) for host in HOSTS)
    successor.learn(to_agent.RosterIs((1, 1), members, at, len(HOSTS), 1), gone, 0.0)
    successor.lost(gone, time.monotonic())
    end = time.monotonic() + 10.0
    while True:
        found = successor.patience(gone, time.monotonic())
        if not successor.asking:
            successor.close()
            return found
        assert time.monotonic() < end
        time.sleep(0.005)


def test_machines_where_an_agent_lives_have_their_time(listening):
    places, _ = listening
    assert patience(places, HOSTS[1]) == FIRST
    assert patience(places, HOSTS[2]) == FIRST + NEXT


def test_a_machine_where_nobody_is_left_has_none(listening):
    places, end = listening
    end(HOSTS[0])
    assert patience(places, HOSTS[1]) == 0.0
    assert patience(places, HOSTS[2]) == NEXT
    end(HOSTS[1])
    assert patience(places, HOSTS[2]) == 0.0


def test_a_manager_that_still_listens_is_there(listening):
    places, end = listening
    end(HOSTS[0])
    with zmq.Context() as context, context.socket(zmq.ROUTER) as manager:
        port = manager.bind_to_random_port(f"tcp://{HOSTS[0]}")
        assert patience(places, HOSTS[1], (HOSTS[0], port)) == FIRST


def test_a_machine_of_unknown_agents_has_its_time(listening):
    places, end = listening
    end(HOSTS[0])
    del places[HOSTS[0]]
    assert patience(places, HOSTS[1]) == FIRST


def test_a_machine_that_does_not_answer_has_its_time(listening):
    places, _ = listening
    with socket.create_server((HOSTS[0], 0)) as stopped:  # it accepts, and says nothing
        assert patience({**places, HOSTS[0]: stopped.getsockname()}, HOSTS[1]) == FIRST


def until(condition):
    end = time.monotonic() + 30.0
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def children():
    """Command lines of this process's living children."""
    found = {}
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended, or does just now
            if process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = "\0".join(process.cmdline())
    return found


def test_a_process_kept_ready_becomes_the_manager(tmp_path, monkeypatch):
    monkeypatch.setenv("TASKD_LOG_PATH", str(tmp_path))
    with socket.create_server((HOSTS[1], 0)) as free:
        port = free.getsockname()[1]
    gone, other = (HOSTS[0], 1), (HOSTS[2], 1)
    successor = Successor(KEYS, HOSTS[1])

    def learn(at):
        places = tuple((host, port) for host in (at[0], *(h for h in HOSTS if h != at[0])))
        successor.learn(to_agent.RosterIs((1, 1), {}, places, 3, 1), at, 0.0)

    before = children()

    def made():
        return {pid: line for pid, line in children().items() if pid not in before}

    try:
        learn(gone)
        assert successor.prepare(READY - 0.1) == READY and not made()
        assert successor.prepare(READY) is None
        # the manager is here now: another machine is the first to start the next one
        learn((HOSTS[1], port))
        assert not made()
        learn(gone)
        successor.prepare(READY)
        (pid,) = made()
        assert successor.prepare(2 * READY) is None and set(made()) == {pid}
        learn(gone)
        assert set(made()) == {pid}
        successor.lost(gone, 0.0)
        successor.start()
        until(lambda: addresses.listens((HOSTS[1], port), 1.0))
        assert set(made()) == {pid}
        assert "-m\0taskd.manager\0--nodes\0003\0--ranks-per-node\0001\0--bind" in made()[pid]
        successor.found(other)
        until(lambda: not made())
        # it ends with the agent, however that ends
        learn(gone)
        successor.prepare(READY)
        successor._spare.stdin.close()
        until(lambda: not made())
    finally:
        successor.found(other)
        successor.close()
