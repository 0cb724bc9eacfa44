"""What the journal and an operator are told of a job whose ranks are away."""

from __future__ import annotations

from pathlib import Path

import pytest

from taskd.core import commands as c
from taskd.core.coordinator import Coordinator
from taskd.core.election.election import Election
from taskd.core.incident import elastic
from taskd.core.job.progress import Progress
from taskd.core.overview import answer, overview
from taskd.core.rank_states import RankStates
from taskd.core.settings import Settings
from taskd.messages import codec, from_agent
from taskd.messages.to_operator import AWAY, Overview, Place
from tests.core.scenario import take
from tests.core.scenario_play import Play
from tests.core.scenario_words import words

GROW = Path(__file__).parents[1] / "scenarios" / "elastic_grow.txt"
INPUTS = [x for x in GROW.read_text().splitlines() if x and not x.startswith((" ", "#"))]


class Told(Play):
    """Plays the inputs of the scenario in which node 3 leaves and comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[c.Command] = []
        self._lines = iter(INPUTS)

    def step(self, *happened):
        said = [x for event in happened for x in self.coordinator.step(event, self.now)]
        self.said += said
        return words(said, self.notes)

    def until(self, last: str) -> None:
        """Up to the input that begins so."""
        for line in self._lines:
            take(self, line)
            if line.startswith(last):
                return
        raise AssertionError(f"{last!r} is not in the scenario")

    @property
    def entries(self):
        return [x.data for x in self.said if isinstance(x, c.Entry) and x.kind == "elastic"]

    def seen(self):
        found = told(self.coordinator, self.now)
        assert codec.TO_OPERATOR.decode(codec.encode(found)) == found
        return found


def told(job: Coordinator, now: float) -> Overview:
    """What an operator who asks is told of the job."""
    states = RankStates(job, Progress(), (), now, 1000.0 + now, "host-{}".format)
    return answer("job", "r", states, Place("host-0", 1, 9601, "/logs", "/logs/journal"))


SHRUNK = {"ranks": 3, "of": 4, "away": ((3, 3, 1),), "shares": 2, "successor": False}
FULL = {"ranks": 4, "of": 4, "away": (), "shares": 1, "successor": False}


def test_each_change_is_told_once():
    job = Told()
    job.until("everybody restored ab")
    assert job.entries == [SHRUNK]
    job.until("standby S has taken node 3")
    job.until("everybody restored cd")
    assert job.entries == [SHRUNK]  # it is not over
    job.until("everybody committed 20")
    job.until("show")
    assert job.entries == [SHRUNK, FULL]


def test_what_an_operator_sees():
    job = Told()
    job.until("form")
    assert job.seen().shrunk is None
    job.until("node 3 is lost")
    assert job.seen().troubled[0].state == "lost, waiting for a standby"
    job.now = 2.0
    job.until("everybody committed 7")
    seen = job.seen()
    assert (seen.state, seen.ranks, seen.troubles) == ("training", 4, 1)
    assert (seen.troubled[0].node, seen.troubled[0].state) == (3, AWAY)
    shrunk = seen.shrunk
    assert (shrunk.ranks, shrunk.of, shrunk.shares, shrunk.since) == (3, 4, 2, 1002.0)
    assert (shrunk.away, shrunk.waiting, shrunk.waits, shrunk.preparing) == (
        ((3, 3, 1),),
        (3,),
        1,
        (),
    )
    lines = overview(job.coordinator).splitlines()
    assert "4 ranks on 4 nodes" in lines[0]
    assert lines[1].startswith("shrunk: 3 of 4 ranks train, with the same global batch")
    assert lines[-1] == f"node 3: ranks 3-3, {AWAY}"
    job.until("standby S waits")
    shrunk = job.seen().shrunk
    assert (shrunk.waiting, shrunk.waits, shrunk.preparing) == ((), 0, ((3, "S"),))
    job.until("standby S has taken node 3")
    assert job.seen().shrunk is None and job.seen().troubles == 0
    job.until("show")
    assert job.seen().shrunk is None


@pytest.mark.parametrize("stand_ins", [((3, 0),), ()])
def test_a_new_manager_tells_what_it_finds(stand_ins):
    """Nothing may be away any more: its predecessor was perhaps lost before it could say so."""
    job = Told()
    job.settings = Settings(4, 1, ("elastic-training", "exit"))
    job.coordinator = Coordinator(job.settings, election=None)
    job.coordinator.election.candidate.term = 2
    state = {"incarnations": (0,), "generation": 2, "resumed": 2, "stand_ins": stand_ins}
    for node in range(4 - len(stand_ins)):
        told = from_agent.AgentJoined(
            node, (node,), ("host", 7000), agent=f"agent-{node}", joined=(node,), **state
        )
        job.step(told)
    assert job.coordinator.job.protected and job.coordinator.recovery.incident is None
    (entry,) = job.entries
    assert entry == {**(SHRUNK if stand_ins else FULL), "successor": True}
    shrunk = job.seen().shrunk
    assert (shrunk is not None) == bool(stand_ins)
    assert shrunk is None or (shrunk.since, shrunk.shares) == (0.0, 2)


def test_the_first_manager_of_a_full_job_has_nothing_to_tell():
    job = Told()
    job.until("form")
    assert job.entries == [] and job.coordinator.recovery.elastic._told


def test_the_entry_is_small_in_a_large_job():
    job = Coordinator(Settings(12_500, 8), Election())
    leaving = [r for r in range(100_000) if r % 64 in (3, 4)]
    job.job.go_away(leaving)
    job.job.stand_ins = {r: r // 64 * 64 for r in leaving}
    job.recovery.elastic.tell()
    (entry,) = (x for x in job.job.out if isinstance(x, c.Entry))
    assert entry.data["ranks"] == 100_000 - len(leaving) and entry.data["shares"] == 3
    assert len(entry.data["away"]) == elastic.SPANS
    assert len(codec.encode(told(job, 1.0))) < 3000
