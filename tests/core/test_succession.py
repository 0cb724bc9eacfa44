"""For whom a new manager waits: for each agent of the roster that may still register. The agent of
node 0, on the previous manager's machine, is lost with it; a standby may be taking over a node."""

from __future__ import annotations

import pytest

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.election.election import FEW, STANDBY, Election
from taskd.core.settings import Settings
from taskd.messages import from_agent
from taskd.messages.values import Voting

ENDED = "its process has ended (ECONNREFUSED)"


class Job:
    """Nodes 0 to 2, of one rank each, and a standby; a new manager, in charge by the votes of the
    others when node 0 is lost."""

    def __init__(
        self, connected: str = "bcs", nodes: int = 3, ladder: str = "recover", standbys: str = "s"
    ) -> None:
        names = [*"abc"[:nodes], *(f"agent-{n}" for n in range(3, nodes))]
        self.members = {a: Voting(n, (f"host-{a}", 7000)) for n, a in enumerate(names)}
        self.members |= {s: Voting(STANDBY, (f"host-{s}", 7000)) for s in standbys}
        settings = Settings(nodes, 1, (ladder, "exit"))
        self.coordinator = Coordinator(settings, Election("next", successor=True))
        self.now = 0.0
        known = [a for a in self.members if len(a) > 1 or a in connected]
        for agent in known:
            self.do(e.VoterStated(agent, 1, "before", (1, 1), self.members, False))
        for agent in known:
            self.do(e.AgentVoted(agent, 2, True))

    def do(self, event):
        return self.coordinator.step(event, self.now)

    def join(self, agent, **more):
        """The agent registers; returns the agents whose machines are asked now."""
        node, at = self.members[agent]
        state = {"incarnations": (0,), "joined": (node,), "generation": 1, "interruption": 0}
        told = from_agent.AgentJoined(
            node, (node,), at, agent=agent, records=at, **{**state, **more}
        )
        return self.asked(self.do(told))

    def stand_by(self, agent="s"):
        joined = from_agent.StandbyJoined(agent, 1, self.members[agent].records)
        return self.asked(self.do(joined))

    @staticmethod
    def asked(out):
        return {a for command in out if isinstance(command, c.AskMachines) for a in command.agents}

    def end(self, agent):
        self.do(e.AgentEnded(agent, ENDED))

    @property
    def waits(self):
        """Until when it waits for agents; None if it does not."""
        return self.coordinator.succession.deadline

    def go_on(self):
        self.do(e.Tick())
        return self.coordinator.recovery.incident


def test_nobody_is_waited_for_once_the_lost_agent_has_ended():
    job = Job()
    assert job.join("b") == {"a"}  # the others are connected
    assert job.join("c") == job.stand_by() == set()  # it is asked once
    assert job.waits == 6.0
    job.end("a")
    assert job.waits == 0.0
    incident = job.go_on()
    assert incident.faults == [f"node 0 (rank 0): it was lost with the previous manager: {ENDED}"]


def test_a_standby_that_takes_over_a_node_is_waited_for():
    job = Job()
    job.join("b"), job.join("c"), job.end("a")
    assert job.waits == 6.0  # it is connected, and has not registered
    job.members["s"] = Voting(0, ("host-s", 7000))
    job.join("s", epoch=1, incarnations=(1,), new=(0,), left=(None,))
    assert job.waits is None and job.go_on().new == {0}


def test_a_standby_that_is_not_connected_yet_is_waited_for_until_it_has_ended():
    job = Job("bca")
    job.coordinator.step(e.AgentDisconnected("a"), 0.0)
    assert job.join("b") == {"a", "s"}
    job.join("c"), job.end("a")
    assert job.waits == 6.0
    job.end("s")
    assert job.waits == 0.0 and job.go_on() is not None


def test_a_machine_that_does_not_answer_has_its_time():
    job = Job()
    job.join("b"), job.join("c"), job.stand_by()
    assert job.waits == 6.0


def test_what_is_said_of_an_agent_that_has_connected_meanwhile_is_void():
    job = Job()
    job.join("b"), job.join("c"), job.stand_by()
    job.do(e.VoterStated("a", 1, "before", (1, 1), {}, False))
    job.end("a")
    assert job.waits == 6.0


def test_no_machine_is_asked_while_many_agents_are_missing():
    job = Job("bcs", FEW + 3)
    others = [f"agent-{n}" for n in range(3, FEW + 3)]
    assert job.join("b") == job.join("c") == set()
    found = [job.join(agent) for agent in others]
    assert found[0] == set() and set().union(*found) == {"a"}


def test_without_recover_a_node_is_waited_for():
    job = Job(ladder="recover-in-place")
    assert job.join("b") == job.join("c") == job.stand_by() == set()
    job.end("a")
    assert job.waits == job.coordinator.job.settings.form


@pytest.mark.parametrize("ended", [False, True])
def test_a_former_agent_does_not_wait_for_a_standby_that_has_ended(ended):
    job = Job("abc")
    assert job.join("b") == {"s"}
    job.join("c"), job.join("a", moves_to="s", moving=True)
    assert set(job.coordinator.job.topology.nodes) == {1, 2}
    if ended:
        job.end("s")
    assert (0 in job.coordinator.job.topology.nodes) == ended


def test_standbys_that_have_registered_do_not_obey_another_manager():
    """Node 1 and two standbys are left of two nodes: the job may shrink at once, before a majority
    has the roster and the standbys may be given nodes."""
    job = Job("bst", nodes=2, ladder="elastic-training", standbys="st")
    job.stand_by("s"), job.stand_by("t"), job.join("b"), job.end("a")
    incident = job.go_on()
    assert incident.faults == [f"node 0 (rank 0): it was lost with the previous manager: {ENDED}"]
    state = job.coordinator.job
    assert not state.topology.standbys and not state.deserted
