"""What a manager writes down and tells operators, over real sockets."""

from __future__ import annotations

import json
import logging

import pytest

from taskd.core.coordinator import Coordinator
from taskd.core.settings import Settings
from taskd.history import files
from taskd.history.reading import Reader
from taskd.manager.history.journal import Journal
from taskd.manager.history.writer import JournalWriter
from taskd.messages import (
    codec,
    from_agent,
    from_operator,
    from_rank,
    to_agent,
    to_operator,
    to_rank,
)
from taskd.messages.envelope import OPERATOR, VERSION, Envelope, seal
from taskd.messages.node_progress import GONE, NodeProgress
from taskd.messages.values import Position

AHEAD = 50_000.0  # seconds that the clock of the second agent is ahead


def records(tmp_path, kind=None):
    found = list(Reader().files(files.of(files.path(tmp_path / "log", "job"))))
    return found if kind is None else [r for r in found if r.kind == kind]


def say(agent, message, at):
    """A message that was sent at `at` on the agent's clock."""
    agent.seq += 1
    body = codec.encode(message)
    agent.socket.send(
        seal(Envelope(VERSION, agent.job, agent.node, agent.incarnation, agent.seq, body, 0, 0, at))
    )


def overview(manager):
    operator = manager.agent(OPERATOR, ())
    operator.send(from_operator.OverviewAsked("request"))
    return operator.expect(to_operator.Overview)


def beat(agent, at=0.0, **more):
    say(agent, from_agent.Heartbeat(2, **more), at)


def synchronize(agent, ahead):
    """The manager asks for the time, and gets it."""
    beat(agent)
    asked = agent.expect(to_agent.TimeAsked).at
    beat(agent, asked + ahead, asked=asked)
    return asked


PROGRESS = NodeProgress((7, 6), bytes((1, 2)), (20_000, 20_000), 100)


def test_an_operator_sees_the_steps_that_heartbeats_tell(start):
    manager = start(2)
    a, b = manager.protected(2)
    seen = overview(manager)
    assert (seen.state, seen.job, seen.nodes, seen.ranks) == ("training", "job", 2, 4)
    assert (seen.step, seen.total) == (-1, 0)
    assert {(r.phase, r.pid, r.state) for r in seen.listed} == {("", 0, "well")}
    beat(a, progress=PROGRESS)
    beat(b, progress=NodeProgress((7, 7), bytes((1, 1)), (90_000, 0), 100))
    manager.serves(b)
    seen = overview(manager)
    assert (seen.step, seen.highest, seen.total, seen.usual) == (6, 7, 100, 0.02)
    assert seen.phases == {"computing": 3, "updating": 1}
    assert [(r.rank, r.node, r.slow) for r in seen.listed] == [
        (0, 0, False),
        (1, 0, False),
        (2, 1, True),
        (3, 1, False),
    ]


def test_a_job_that_has_not_formed_says_who_is_missing(start):
    manager = start(3)
    manager.agent(0, (0, 1)).join()
    manager.wait(lambda: manager.server.members.agents)
    seen = overview(manager)
    assert seen.state == "starting" and seen.troubles == 2
    assert [(n.node, n.state) for n in seen.troubled] == [
        (1, "has not joined"),
        (2, "has not joined"),
    ]


@pytest.mark.parametrize(
    ("by", "said"), [(3600.0, "ahead by 3600.0 s"), (-2.5, "back by 2.5 s"), (0.9, "")]
)
def test_a_clock_that_was_set_is_said_once(tmp_path, caplog, by, said):
    """As "this machine's clock was set ahead by N s" in docs/troubleshooting.md."""
    ahead, now = [1000.0], [5.0]
    journal = Journal(str(tmp_path), "job", lambda: now[0] + ahead[0], lambda: now[0])
    writer = JournalWriter(journal, Coordinator(Settings(1, 1)).job)
    writer.write_due(5.0)
    ahead[0] += by
    for now[0] in (6.0, 7.0):
        writer.write_due(now[0])
    entries = list(Reader().files([journal.path] if said else []))
    expected = [f"this machine's clock was set {said}"] if said else []
    assert [r.text("text") for r in entries] == expected
    assert caplog.text.count("clock was set") == bool(said)


def test_ranks_that_are_away_do_not_hold_the_step_back(tmp_path):
    """Their processes have ended, and their nodes may live."""
    state = Coordinator(Settings(2, 2)).job
    writer = JournalWriter(Journal(str(tmp_path), "job"), state)

    def beats(away):
        state.topology.away = frozenset(away)
        writer.heard(0, (0, 1), NodeProgress((5, 9), bytes((GONE, 1)), (90, 20), 100), 1.0)
        writer.heard(1, (2, 3), NodeProgress((9, 9), b"\x01\x01", (20, 20), 100), 1.0)
        return writer.progress.seen()

    assert (seen := beats(())).step == 5 and seen.phases == {"computing": 3, "gone": 1}
    seen = beats({0})
    assert (seen.step, seen.total, seen.phases) == (9, 100, {"computing": 3})
    assert seen.slow == ()
    beats({0, 1})
    assert sorted(writer.progress.nodes) == [1]
    beats(())
    assert sorted(writer.progress.nodes) == [0, 1]


def test_the_process_of_a_rank_that_has_ended_stays_written(tmp_path):
    """Where a heartbeat fell between the ends of two ranks, the journal of a job that had ended
    well had no process of the first one."""
    journal = Journal(str(tmp_path), "job")
    writer = JournalWriter(journal, Coordinator(Settings(1, 2)).job)

    def beat(pids, incarnations):
        said = NodeProgress(
            (9, 9),
            b"\x01\x01",
            (20, 20),
            100,
            pids=pids,
            incarnations=incarnations,
            devices=("", ""),
        )
        writer.heard(0, (0, 1), said, 1.0)

    beat((7, 8), (0, 0))
    beat((0, 8), (0, 0))
    beat((0, 8), (1, 0))  # its replacement has none yet
    beat((9, 8), (1, 0))
    written = [r for r in Reader().files([journal.path]) if r.kind == "processes"]
    assert [r.data["pids"] for r in written] == [[7, 8], [0, 8], [9, 8]]


def test_how_a_rank_has_ended(start, tmp_path):
    """As its agent says it, before what the manager makes of it; a traceback is not cut like other
    texts."""
    manager = start(1)
    (agent,) = manager.protected(1)
    text = "x" * 16_000
    agent.send(from_agent.RankDied(1, 0, "exited with status 1", None, "ValueError: x", 4711, text))
    manager.wait(lambda: records(tmp_path, "fault"))
    kinds = [r.kind for r in records(tmp_path) if r.kind in ("death", "fault")]
    assert kinds == ["death", "fault"]
    (death,) = records(tmp_path, "death")
    assert death.data == {
        "rank": 1, "incarnation": 0, "node": 0, "pid": 4711, "cause": "exited with status 1",
        "raised": "ValueError: x", "traceback": text,
    }  # fmt: skip


@pytest.mark.parametrize("progress", [(1,), (1, 2, 3)])
def test_a_heartbeat_that_does_not_fit_its_ranks_says_nothing(start, progress):
    manager = start(1)
    (agent,) = manager.protected(1)
    some = len(progress)
    beat(agent, progress=NodeProgress(progress, bytes(some), (0,) * some))
    manager.serves(agent)
    assert overview(manager).step == -1


def test_moments_of_ranks_are_on_one_clock_however_far_the_agents_clocks_are_off(start, tmp_path):
    manager = start(2)
    a, b = manager.protected(2)
    synchronize(a, 0.0)
    now = synchronize(b, AHEAD)
    manager.serves(b)
    clock = manager.server.members.agents[1].clock
    assert abs(clock.offset.seconds - AHEAD) <= clock.offset.bound

    position = Position(7, 7, final=frozenset({7}), stripes=frozenset({7}))
    say(a, from_rank.CollectiveFailed(0, 0, 7, "a link is cut"), now)
    interruption = b.expect(to_rank.Interrupt).interruption
    for agent, rank, at in ((a, 0, now + 1e6), (a, 1, 0.0), (b, 2, 1.0), (b, 3, AHEAD + 1e6)):
        # of the future, unknown, of long ago: none of that is believed
        say(agent, from_rank.RankInterrupted(rank, 0, interruption, position), at)
    manager.repairs([a, b], 7)
    manager.wait(lambda: records(tmp_path, "incident"))
    (incident,) = (r.data for r in records(tmp_path, "incident"))
    (round_,) = incident["rounds"]
    assert round_["interrupted"][2] == round_["began"]  # not before the round
    for event in ("interrupted", "rebuilt", "restored", "committed"):
        assert all(
            round_["began"] <= moment <= incident["seconds"] * 1e3 + 0.1 for moment in round_[event]
        ), round_
    phases = [r.text("phase") for r in records(tmp_path, "phase")]
    assert phases == ["INTERRUPT", "DECIDE", "REPLACE", "REBUILD", "RESTORE", "RESUME", "CLOSED"]
    seen = overview(manager)
    assert [i.result for i in seen.incidents] == ["repaired"] and seen.incidents_seen == 1


def test_an_incident_under_way_is_seen(start):
    manager = start(1)
    (agent,) = manager.protected(1)
    agent.send(from_rank.CollectiveFailed(0, 0, 7, "a link is cut"))
    agent.expect(to_rank.Interrupt)
    seen = overview(manager)
    assert seen.state == "repairing"
    (incident,) = seen.incidents
    assert (incident.result, incident.phase, incident.round) == ("under way", "INTERRUPT", 1)
    assert "a link is cut" in incident.faults[0]


def test_the_job_begins_joins_and_ends_in_the_journal(start, tmp_path):
    manager = start(1)
    (agent,) = manager.protected(1)
    beat(agent, progress=PROGRESS)
    for rank in agent.ranks:
        agent.send(from_rank.RankFinished(rank, 0, 100))
    agent.expect(to_rank.Release)
    agent.join(generation=1)  # registers again: it is the same agent
    agent.send(from_agent.AgentLeft(0, True))
    assert manager.outcome().ok is True
    found = records(tmp_path)
    assert [r.kind for r in found if r.kind not in ("note", "clocks")] == [
        "start",
        "join",
        "protected",
        "progress",
        "end",
    ]
    assert found[0].data["nodes"] == 1 and found[0].data["version"] == 1
    (progress,) = records(tmp_path, "progress")
    assert progress.data["step"] == 100  # later than any heartbeat has said
    join = next(r for r in found if r.kind == "join")
    assert (join.data["node"], join.data["first"], join.data["ranks"]) == (0, 0, 2)


def test_a_manager_that_leaves_says_so(start, tmp_path):
    manager = start(1)
    manager.protected(1)
    manager.stop("SIGTERM was received; the job continues")
    assert records(tmp_path)[-1].kind == "leave"


def test_a_journal_that_cannot_be_written_does_not_stop_the_manager(start, tmp_path, caplog):
    (tmp_path / "log").write_text("a file where the directory would be")
    with caplog.at_level(logging.WARNING, "taskd.manager"):
        manager = start(1)
        (agent,) = manager.protected(1)
        beat(agent, progress=PROGRESS)
        assert overview(manager).state == "training"
    assert caplog.text.count("cannot be written") == 1
    assert json.dumps(overview(manager).phases)
