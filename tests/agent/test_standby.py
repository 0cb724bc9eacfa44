"""Who has a node that moves when the manager that ordered it is gone. The agent around the standby
is played."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd.agent.member import Member
from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.standby import Standby
from taskd.messages import from_agent, to_agent
from taskd.messages.envelope import STANDBY
from taskd.protocol import keys

NAME, FORMER, AT = "b" * 32, "a" * 32, ("10.0.0.1", 7)
NODE = (1, (2, 3), (1, 1), 2, 4, 1)  # ..., nodes, world size, epoch


class Agent(Member):
    """Notes what it is told."""

    name, addresses, obeyed = NAME, (AT, AT), (1, "m1")

    def __init__(self):
        super().__init__(keys.derive(b"tests"), "job")
        self.epoch = Epoch(1, Path("/nowhere"), SimpleNamespace(interrupt=lambda n: None))
        self.epoch.ranks = {i: Rank(2 + i, i, None, None, -1, incarnation=1) for i in range(2)}
        self.told, self.fetching, self.sends_as = [], [], None
        self.records = SimpleNamespace(
            fetch=lambda node, ranks, at, done: self.fetching.append(done),
            begin=lambda node, epoch: None,
        )
        self.managers = SimpleNamespace(be_node=lambda node: setattr(self, "sends_as", node))

    def call(self, what):
        what()

    def announce(self):
        pass

    def report(self, message):
        self.told.append(message)


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.setattr("taskd.agent.standby.put_back", lambda *found: None)
    monkeypatch.setattr("taskd.records.store.left_behind", lambda *where: None)
    return Agent()


@pytest.fixture
def standby(agent):
    """It is ready to be node 1, and has just been given it."""
    processes = SimpleNamespace(kill=lambda rank: None)
    standby = Standby(agent, processes, SimpleNamespace(begin=lambda epoch: None))
    standby.room = 2
    standby.ordered(to_agent.Prepare(NAME, *NODE, AT, "its link flaps"))
    for rank in agent.epoch.ranks.values():
        rank.ready = True
    standby.ready(agent.epoch)
    standby.ordered(to_agent.TakeOver(NAME, *NODE, 2, 1, AT, "its link flaps", FORMER))
    return standby


def another_manager(agent, standby):
    agent.obeyed = (2, "m2")
    standby.look_at_manager()


def test_a_manager_that_is_not_acknowledged_yet_is_told_nothing_of_the_node(agent, standby):
    agent.fetching[0](())
    assert not standby.undecided((1, "m1"))
    assert standby.undecided((2, "m2"))
    another_manager(agent, standby)
    assert not standby.undecided((2, "m2"))


def test_a_node_whose_records_are_still_on_their_way_stays_with_its_former_agent(agent, standby):
    assert len(agent.fetching) == 1 and agent.sends_as is None
    another_manager(agent, standby)
    assert standby.room == 2 and standby.prepares.node == 1
    agent.fetching[0](())
    assert agent.sends_as == STANDBY
    assert not any(isinstance(m, from_agent.NodeTaken) for m in agent.told)


@pytest.mark.parametrize("restored", [(), (0,), (0, 1)])
def test_a_node_stays_with_the_standby_once_all_ranks_have_their_state(agent, standby, restored):
    agent.fetching[0](())
    assert agent.node == agent.sends_as == 1
    epoch = agent.epoch
    epoch.generation = 3
    for local in restored:
        epoch.ranks[local].restored = 3
    another_manager(agent, standby)
    whole = len(restored) == 2
    assert agent.sends_as == (1 if whole else STANDBY)
    assert epoch.former == (FORMER if whole else "")
    assert standby.room == (None if whole else 2)
    assert (standby.prepares is None) == whole


@pytest.mark.parametrize("away", [(0,), (0, 1)])
def test_a_node_is_given_back_if_no_rank_of_it_is_left(agent, standby, away):
    agent.fetching[0](())
    standby.moved()
    epoch = agent.epoch
    for local in away:
        epoch.ranks[local].away = True
    gone = len(away) == 2
    standby.stand_down(to_agent.StandDown(NAME, 1, "its replica has left"))
    assert agent.sends_as == (STANDBY if gone else 1)
    assert standby.room == (2 if gone else None)
    assert agent.epoch is (None if gone else epoch)
    # the launcher waits for the next order in place of the one that it has carried out
    order = to_agent.TakeOver(NAME, *NODE, 2, 1, AT, "its link flaps", FORMER)
    assert standby.holds(order) != gone and standby.holds(None) != gone


def test_as_long_as_no_manager_has_answered_it_looks_where_the_one_in_charge_is(agent, monkeypatch):
    monkeypatch.setattr("taskd.agent.standby.LOOK", 0.01)
    standby = Standby(agent, SimpleNamespace(), SimpleNamespace())
    asked, met = [], []
    agent.managers.link = SimpleNamespace(address=("10.0.0.9", 9601))
    agent.managers.met = False

    def meet_at(place):
        met.append(place)
        agent.managers.met = True
        standby.leave()

    def find(address):
        asked.append(address)
        return None if len(asked) < 3 else ("10.0.0.2", 9601)

    agent.managers.meet_at = meet_at
    assert standby.wait(2, find) is None
    assert asked == [("10.0.0.9", 9601)] * 3 and met == [("10.0.0.2", 9601)]
