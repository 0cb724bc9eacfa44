"""Every command of `core` reaches what carries it out. One without a route ends the manager's loop
in the middle of an incident, and one with two would be sent to the wrong agents."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from taskd.core.commands import Command
from taskd.manager import routing
from taskd.manager.following.clusterd import ClusterDConnection
from taskd.manager.following.kubernetes import KubernetesConnection
from taskd.manager.routing import Routing
from taskd.messages import codec, to_rank

KINDS = {"to all": routing.TO_ALL, "to a rank": routing.TO_RANK, "to a node": routing.TO_NODE}


def name(kind: type) -> str:
    return kind.__name__


def fields(kind: type) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {f.name for f in dataclasses.fields(kind)}
    return set(kind.__struct_fields__)


@pytest.fixture
def routes(start) -> dict[type, Any]:
    return start(1).server._routing._routes


@pytest.mark.parametrize("kind", get_args(Command), ids=name)
def test_every_command_has_a_route(routes, kind):
    assert callable(routes.get(kind)), f"{kind.__name__} would be lost"


def test_nothing_else_has_one(routes):
    """A route that no command takes: the command was forgotten in the union."""
    assert set(routes) == set(get_args(Command))


def test_no_command_has_two_routes(start):
    server = start(1).server
    kinds = [*KINDS.values(), server.members.commands, server.voters.commands]
    found = [kind for several in kinds for kind in several]
    assert sorted(found, key=name) == sorted(set(found), key=name)


def test_what_goes_to_one_agent_says_to_which():
    assert [k for k in routing.TO_RANK if "rank" not in fields(k)] == []
    assert [k for k in routing.TO_NODE if "node" not in fields(k)] == []


@pytest.mark.parametrize("where", KINDS)
def test_what_goes_to_agents_is_a_message(where):
    for kind in KINDS[where]:
        assert issubclass(kind, msgspec.Struct) and kind.__module__.startswith("taskd.messages.")


# -- where they go ---------------------------------------------------------------------------------


class Sent:
    """In place of the manager's sockets."""

    def __init__(self) -> None:
        self.to: list[str] = []

    def send(self, peer: str, message: Any) -> None:
        codec.encode(message)
        self.to.append(peer)

    def seal(self, message: Any, numbered: bool = False) -> bytes:
        assert numbered, "an order that is lost is sent again"
        return codec.encode(message)

    def deliver(self, peer: str, data: bytes) -> None:
        self.to.append(peer)


def carry_out(command: Any, agents: dict[int, str]) -> list[str]:
    """The agents of two nodes with two ranks each that it is sent to."""
    sent = Sent()
    parts: dict[str, Any] = {
        "job": SimpleNamespace(
            topology=SimpleNamespace(node_of=lambda rank: rank // 2 if rank < 4 else None)
        ),
        "members": SimpleNamespace(agents=agents, commands=(), carry_out=None),
        "voters": SimpleNamespace(commands=(), carry_out=None),
        "operators": SimpleNamespace(answer=None),
        "out": sent,
        "journal_writer": SimpleNamespace(carried_out=lambda command: None),
        "continuity": None,
        "cluster": ClusterDConnection(),
        "kubernetes": KubernetesConnection(),
        "leave": lambda well, why: None,
    }
    Routing(**parts).carry_out([command], 0.0)
    return sent.to


BOTH = {0: "agent of 0", 1: "agent of 1"}


def test_a_checkpoint_is_saved_by_all_and_named_by_one():
    save = to_rank.SaveCheckpoint(1, 1, 7, ((0, 2),))
    assert carry_out(save, BOTH) == ["agent of 0", "agent of 1"]
    for rank, agent in ((0, "agent of 0"), (1, "agent of 0"), (3, "agent of 1")):
        assert carry_out(to_rank.RenameCheckpoint(1, 1, 7, rank), BOTH) == [agent]


def test_an_order_to_a_node_without_an_agent_is_told(caplog):
    for rank in (3, 4):
        assert carry_out(to_rank.RenameCheckpoint(1, 1, 7, rank), {0: "agent of 0"}) == []
    assert caplog.text.count("not sent, since the node has no agent: rank ") == 2
