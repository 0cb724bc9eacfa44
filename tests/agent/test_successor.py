"""When an agent starts the next manager: it leaves time to the machines before it, but none to one
that says that nobody is left there."""

from __future__ import annotations

import socket
import time

import pytest
import zmq

from taskd.agent.manager.successor import FIRST, NEXT, Successor
from taskd.messages import to_agent
from taskd.messages.values import Voting
from taskd.protocol import keys

HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]  # in the order in which they start a manager
PORT = 9  # of their managers; nobody listens there


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
    successor = Successor(keys.derive(b"a secret of some length"), here)
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
