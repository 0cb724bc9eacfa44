"""A node is lost and nobody comes: what a real manager writes down, and tells operators, Prometheus
and programs, of a job that goes on without it."""

from __future__ import annotations

import time

from taskd.core.job.ladder import ELASTIC
from taskd.history import files
from taskd.history.model import of_records
from taskd.history.notices.queue import Targets
from taskd.history.reading import Reader
from taskd.history.status.model import of_journal, of_manager
from taskd.manager.history.observers import Observers
from taskd.manager.limits import ManagerLimits
from taskd.messages import from_agent, from_operator, from_rank, to_agent, to_operator, to_rank
from taskd.messages.envelope import OPERATOR
from taskd.messages.node_progress import NodeProgress
from taskd.messages.to_operator import AWAY
from taskd.messages.values import Position

STEP = 7
AT = Position(STEP, STEP, final=frozenset({STEP}), stripes=frozenset({STEP}))
BEAT = NodeProgress((8, 8), bytes((1, 1)), (20_000, 20_000), 100)
SILENCE = 3.0


class Observed(Observers):
    """Notices are kept."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Targets(()))
        self.told: list[dict] = []
        assert self._targets is not None
        self._targets.send = self.told.append  # type: ignore[method-assign]


def overview(manager):
    operator = manager.agent(OPERATOR, ())
    operator.send(from_operator.OverviewAsked("request"))
    return operator.expect(to_operator.Overview)


def read(tmp_path):
    job = of_records(Reader().files(files.of(files.path(tmp_path / "log", "job"))))
    assert job is not None
    return job


def interrupted(agents):
    """Agents that live until they are interrupted; the number of that."""
    found = {}
    while len(found) < len(agents):
        for agent in agents:
            agent.send(from_agent.Heartbeat(2, progress=BEAT))
            while agent not in found and agent.socket.poll(50):
                if isinstance(message := agent.receive(), to_rank.Interrupt):
                    found[agent] = message.interruption
    return min(found.values())


def test_a_job_that_goes_on_without_a_node(start, tmp_path):
    manager = start(
        3,
        ManagerLimits(silence=SILENCE, look=0.1),
        observers=(observed := Observed()),
        ladder=(ELASTIC, "exit"),
    )
    agents = manager.protected(3)
    began = time.time()
    agents[2].send(from_agent.Heartbeat(2, progress=BEAT))
    present = agents[:2]
    interruption = interrupted(present)  # node 2 says nothing any more
    for agent in present:
        for rank in agent.ranks:
            agent.send(from_rank.RankInterrupted(rank, 0, interruption, AT))
    taken = present[0].expect(to_agent.TakeRecords)
    assert taken.away == (4, 5)
    left = (AT,) * len(taken.away)
    present[0].send(from_agent.RecordsTaken(0, interruption, taken.away, left))
    manager.repairs(present, STEP)
    for agent in present:
        agent.send(from_agent.Heartbeat(2, progress=BEAT))
    manager.wait(lambda: read(tmp_path).closed == 1)

    seen = overview(manager)
    assert (seen.state, seen.ranks, seen.step) == ("training", 6, 8)
    assert seen.shrunk is not None and (seen.shrunk.ranks, seen.shrunk.of) == (4, 6)
    assert (seen.shrunk.away, seen.shrunk.waiting, seen.shrunk.shares) == (((4, 5, 1),), (2,), 2)
    assert [(n.node, n.state) for n in seen.troubled] == [(2, AWAY)]

    # the journal says the same
    job = read(tmp_path)
    by_journal = of_journal("x", job, time.time()).seen
    assert by_journal.shrunk is not None and by_journal.troubled == seen.troubled
    for since in (by_journal.shrunk.since, seen.shrunk.since):
        assert began < since <= time.time()
    for name in ("ranks", "of", "shares", "away", "waiting", "waits", "preparing"):
        assert getattr(by_journal.shrunk, name) == getattr(seen.shrunk, name), name
    assert job.incidents[-1].strategy == ELASTIC
    assert of_manager("x", seen).plain["shrunk"]["waiting"] == [2]

    # and so do metrics and notices
    figures = observed.figures
    assert figures is not None
    manager.wait(lambda: manager.server.coordinator.recovery.incident is None)
    samples = {
        (s.name, *s.labels.values()): s.value
        for metric in figures.registry.collect()
        for s in metric.samples
    }
    names = ("taskd_training_ranks", "taskd_away_ranks", "taskd_step_shares")
    assert [samples[(name,)] for name in names] == [4, 2, 2]
    assert samples["taskd_incidents_total", ELASTIC, "repaired"] == 1
    (told,) = (n for n in observed.told if n["event"] == "elastic")
    found = {name: told[name] for name in ("ranks", "of", "shares", "away")}
    assert found == {"ranks": 4, "of": 6, "shares": 2, "away": "ranks 4-5"}
