"""What `core` has written into the journal: every incident ends in one entry or one Closed, and
what leads there is told as it happens."""

from __future__ import annotations

import pytest

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_rank, to_agent
from taskd.messages.values import Position

POSITION = Position(7, 7, final=frozenset({7}), stripes=frozenset({7}))
LADDER = ("recover-in-place", "exit")


class Job:
    """A job of one node with two ranks, in its loop."""

    def __init__(self, **settings):
        settings = {"ladder": LADDER, "replacements": 1, **settings}
        self.coordinator = Coordinator(Settings(1, 2, **settings))
        self.said: list[c.Command] = []
        self.now = 0.0
        self.tell(from_agent.AgentJoined(0, (0, 1), ("node-0", 7000), agent="agent-0"))
        for rank in (0, 1):
            self.tell(from_rank.RankJoined(rank))
        for rank in (0, 1):
            self.tell(from_rank.RankRebuilt(rank, 0, 1))

    def tell(self, event, at=None):
        self.now += 1.0
        self.said += self.coordinator.step(event, self.now, at)

    def entries(self, kind=None):
        told = [x for x in self.said if isinstance(x, c.Entry)]
        return [x.data for x in told if x.kind == kind] if kind else [x.kind for x in told]

    def repair(self):
        """Rank 1 dies and is replaced; rank 0 had come to step 8, one step further."""
        self.tell(from_agent.RankDied(1, 0, "SIGKILL", POSITION))
        further = POSITION.but(step=8, clean=8, final=frozenset({7, 8}), stripes=frozenset({7, 8}))
        self.tell(from_rank.RankInterrupted(0, 0, 1, further), at=self.now + 0.25)
        self.tell(from_rank.RankReady(1, 1))
        for event in (
            lambda r: from_rank.RankRebuilt(r, r, 2),
            lambda r: from_rank.RankRestored(r, r, 2, "same"),
            lambda r: from_rank.StepCommitted(r, r, 2, 7),
        ):
            for rank in (0, 1):
                self.tell(event(rank))


def test_a_repaired_incident():
    job = Job()
    job.repair()
    assert job.entries("protected") == [{"generation": 1}]
    (fault,) = job.entries("fault")
    assert fault["incident"] == 1 and "SIGKILL" in fault["text"]
    (decision,) = job.entries("decision")
    assert decision["strategy"] == "recover-in-place" and decision["reason"]
    phases = [e["phase"] for e in job.entries("phase")]
    assert phases[:2] == ["INTERRUPT", "DECIDE"] and phases[-2:] == ["RESUME", "CLOSED"]
    assert {(e["round"], e["strategy"]) for e in job.entries("phase")} == {(1, "recover-in-place")}
    (closed,) = (x for x in job.said if isinstance(x, c.Closed))
    assert (closed.step, closed.reached) == (7, 8)  # one committed step is repeated
    (round_,) = closed.rounds
    # the moment of the event, where it is known, and not that of its arrival
    assert round_["interrupted"] == [250.0, None]
    assert round_["ready"][1] == 2000.0 and round_["committed"] == [7000.0, 8000.0]
    assert job.entries("incident") == []


def test_what_an_entry_tells_is_not_told_again_by_a_note():
    job = Job()
    job.repair()
    notes = [x.text for x in job.said if isinstance(x, c.Note) and not x.journaled]
    assert not [n for n in notes if "SIGKILL" in n or n.startswith(("strategy", "incident 1"))]
    assert any(n.startswith("repair: step 7") for n in notes)


@pytest.mark.parametrize(
    ("retries", "result", "command"),
    [(0, "ended", to_agent.End), (1, "restarted", to_agent.RestartAll)],
)
def test_an_incident_that_was_not_repaired(retries, result, command):
    job = Job(retries=retries)
    job.tell(from_agent.RankDied(1, 0, "SIGKILL", POSITION))
    job.tell(from_agent.RankDied(1, 1, "SIGKILL", POSITION))
    (incident,) = job.entries("incident")
    assert (incident["result"], incident["step"], incident["ranks"]) == (result, -1, [1])
    assert incident["seconds"] == 1.0 == sum(incident["phases"].values())
    assert len(incident["faults"]) == 2 and "died again" in incident["tried"][0]
    assert [type(x) for x in job.said].count(command) == 1
    kinds = job.entries()
    assert kinds.index("incident") > kinds.index("fault")


def test_a_lost_node_is_told():
    job = Job()
    job.tell(e.AgentLost(0, "its process has ended"))
    assert job.entries("lost") == [{"node": 0, "why": "its process has ended"}]
