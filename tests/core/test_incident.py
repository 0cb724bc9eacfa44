"""Walks the table of phases, and checks what the coordinator waits for in each phase."""

from __future__ import annotations

import pytest

from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.incident import phases
from taskd.core.incident.phases import FINAL, PASSING, TABLE, Move, Phase, after
from taskd.core.incident.state import Timeline
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_rank, to_agent, to_rank
from taskd.messages.values import Position

WAITED = [p for p in Phase if p not in FINAL | PASSING]


def reachable(start):
    seen, todo = set(), [start]
    while todo:
        phase = todo.pop()
        if phase not in seen:
            seen.add(phase)
            todo += TABLE[phase].values()
    return seen


def test_every_phase_has_its_line():
    assert set(TABLE) == set(Phase)


def test_every_phase_is_reached_from_detect():
    assert reachable(Phase.DETECT) == set(Phase)


@pytest.mark.parametrize("phase", Phase, ids=lambda p: p.value)
def test_every_phase_is_left_but_the_final_ones(phase):
    assert (TABLE[phase] == {}) == (phase in FINAL)
    assert bool(reachable(phase) & FINAL), "nothing leads from here to an end"


@pytest.mark.parametrize("phase", WAITED, ids=lambda p: p.value)
def test_a_phase_that_is_waited_in_has_a_way_out_when_nobody_answers(phase):
    if phase is Phase.CONSULT:  # the repair goes on without ClusterD
        assert {Move.INTERRUPTED, Move.MISSED} < set(TABLE[phase])
        return
    # a deadline leads to a round in which the silent ranks are killed; if they do not die, SPENT
    # leads out of it. A phase that waits for replacements, standbys or a disk has no rank to kill
    nobody_to_kill = phase in (Phase.REPLACE, Phase.RESCHEDULE, Phase.DUMP)
    assert TABLE[phase][Move.DEADLINE] is (Phase.FAILED if nobody_to_kill else Phase.INTERRUPT)
    assert TABLE[phase][Move.SPENT] is Phase.FAILED


@pytest.mark.parametrize("phase", WAITED, ids=lambda p: p.value)
def test_a_fault_in_any_phase_starts_the_next_round(phase):
    assert TABLE[phase][Move.FAULT] is Phase.INTERRUPT


@pytest.mark.parametrize("phase", sorted(PASSING, key=lambda p: p.value), ids=lambda p: p.value)
def test_a_phase_that_is_passed_has_nothing_to_wait_for(phase):
    assert Move.DEADLINE not in TABLE[phase]
    assert Move.FAULT not in TABLE[phase] or phase is Phase.DETECT


def test_a_closed_incident_has_committed():
    assert [
        (p, m) for p, moves in TABLE.items() for m, to in moves.items() if to is Phase.CLOSED
    ] == [(Phase.RESUME, Move.COMMITTED)]
    assert [
        (p, m) for p, moves in TABLE.items() for m, to in moves.items() if to is Phase.ENDED
    ] == [(Phase.DUMP, Move.SAVED), (Phase.FAILED, Move.STOPPED)]


def test_no_way_from_a_fault_to_resume_but_through_pause_plan_rebuild_and_restore():
    into = {
        to: {p for p, moves in TABLE.items() if to in moves.values() and p is not to}
        for to in Phase
    }
    assert into[Phase.RESUME] == {Phase.RESTORE}
    assert into[Phase.RESTORE] == {Phase.REBUILD}
    assert into[Phase.REBUILD] == {Phase.REPLACE}
    assert into[Phase.REPLACE] == {Phase.DECIDE}
    assert into[Phase.DECIDE] == {Phase.INTERRUPT, Phase.CONSULT, Phase.RESCHEDULE}
    assert into[Phase.RESCHEDULE] == {Phase.INTERRUPT, Phase.CONSULT}
    assert into[Phase.CONSULT] == {Phase.INTERRUPT}


def test_every_move_is_used():
    assert {m for moves in TABLE.values() for m in moves} == set(Move)


def test_a_move_that_the_table_has_not_is_an_error():
    with pytest.raises(KeyError):
        after(Phase.CLOSED, Move.FAULT)


@pytest.mark.parametrize("phase", Phase, ids=lambda p: p.value)
def test_the_theory_above_the_table_names_every_phase(phase):
    assert (
        phase.value
        in (phases.__doc__ or "")
        .split('"""')[0]
        .replace(".", " ")
        .replace(",", " ")
        .replace(";", " ")
        .replace(":", " ")
        .split()
    )


# All limits differ, so that a mix-up is detected.
LIMITS = {
    "interrupt_again": 2.0,
    "interruption": 30.0,
    "form": 400.0,
    "rebuild": 50.0,
    "restore": 600.0,
    "resume": 700.0,
    "kill": 8.0,
    "look": None,
}
AT = Position(5, 5, frozenset({5}), frozenset(), frozenset({5}), frozenset())


def trained(**changes):
    k = Coordinator(Settings(1, 2, **{**LIMITS, **changes}))
    for event in (
        from_agent.AgentJoined(0, (0, 1), ("h", 1)),
        from_rank.RankJoined(0),
        from_rank.RankJoined(1),
        from_rank.RankRebuilt(0, 0, 1),
        from_rank.RankRebuilt(1, 0, 1),
    ):
        k.step(event, 0.0)
    assert k.job.protected
    return k


# The events that lead from each phase to the next after the death of rank 1.
STORY = [
    ("interruption", from_agent.RankDied(1, 0, "was killed", AT.but(clean=None))),
    ("form", from_rank.RankInterrupted(0, 0, 1, AT)),
    ("rebuild", from_rank.RankReady(1, 1)),
    ("restore", from_rank.RankRebuilt(0, 0, 2), from_rank.RankRebuilt(1, 1, 2)),
    ("resume", from_rank.RankRestored(0, 0, 2, "d"), from_rank.RankRestored(1, 1, 2, "d")),
]


@pytest.mark.parametrize("length", range(1, len(STORY) + 1), ids=lambda n: STORY[n - 1][0])
def test_each_phase_has_its_own_limit(length):
    # one second apart, so that a limit counted from the wrong moment is detected
    k, now = trained(), 10.0
    for _, *events in STORY[:length]:
        now += 1.0
        for event in events:
            k.step(event, now)
    limit = STORY[length - 1][0]
    if limit == "interruption":
        assert k.deadline() == now + LIMITS["interrupt_again"]
        (note, again) = k.step(e.Tick(), now + LIMITS["interrupt_again"])
        assert again == to_rank.Interrupt(1, "asked again", "recover-in-place")
    assert k.deadline() == now + LIMITS[limit]
    assert k.step(e.Tick(), now + LIMITS[limit] - 0.001) == []
    said = k.step(e.Tick(), now + LIMITS[limit])
    assert said, "the deadline has no consequence"
    due = k.deadline()
    killed = [x.rank for x in said if isinstance(x, to_agent.Kill)]
    if limit == "form":
        assert k.job.over and due is None
        return
    assert killed
    # the ranks that are not killed are interrupted once more, with a new deadline; then the killed
    # ones are awaited
    again = now + LIMITS[limit] + LIMITS["interrupt_again"]
    for rank in set(k.recovery.silent()) - set(killed):
        assert k.deadline() == again
        k.step(
            from_rank.RankInterrupted(rank, k.job.ranks[rank].incarnation, k.job.interruption, AT),
            again - 0.001,
        )
    assert k.deadline() == now + LIMITS[limit] + max(LIMITS["kill"], LIMITS["interruption"])
    k.step(e.Tick(), now + LIMITS[limit] + LIMITS["kill"] + LIMITS["interruption"])
    assert k.job.over


def test_all_phases_that_are_waited_in_are_in_the_story():
    # RESCHEDULE waits only if a node is lost, see below; DUMP has its own strategy; CONSULT needs
    # ClusterD (tests/scenarios/clusterd_silent.txt)
    assert len(STORY) + 3 == len(WAITED)


def test_a_lost_node_is_waited_for_as_long_as_is_configured_and_a_standby_as_long_as_it_needs():
    k = Coordinator(Settings(2, 1, ("recover", "exit"), reschedule=100.0, take_over=7.0))
    for node in (0, 1):
        k.step(
            from_agent.AgentJoined(node, (node,), ("h", 1), agent=f"a{node}", records=("h", 2)), 0.0
        )
    for event in (
        from_rank.RankJoined(0),
        from_rank.RankJoined(1),
        from_rank.RankRebuilt(0, 0, 1),
        from_rank.RankRebuilt(1, 0, 1),
    ):
        k.step(event, 0.0)
    k.step(e.AgentLost(1, "it is silent"), 10.0)
    k.step(from_rank.RankInterrupted(0, 0, 1, AT), 11.0)
    assert k.recovery.phase is Phase.RESCHEDULE and k.deadline() == 11.0 + 100.0
    k.step(from_agent.StandbyJoined("s", 1), 50.0)
    assert k.deadline() == 50.0 + 7.0
    k.step(e.Tick(), 57.0)  # given up: the next standby has the rest of the time
    k.step(from_rank.RankInterrupted(0, 0, 2, AT), 58.0)
    assert k.recovery.phase is Phase.RESCHEDULE and k.deadline() == 11.0 + 100.0
    k.step(e.Tick(), 111.0)
    assert k.job.over


def test_asked_again_only_once():
    k = trained()
    k.step(from_agent.RankDied(1, 0, "was killed", AT), 0.0)
    k.step(e.Tick(), 2.0)
    assert k.step(e.Tick(), 2.1) == []
    assert k.deadline() == 30.0


def test_a_timeline_adds_up():
    timeline = Timeline()
    for phase, now in (("INTERRUPT", 1.0), ("REPLACE", 2.0), ("INTERRUPT", 5.0), ("RESUME", 5.5)):
        timeline.enter(phase, now)
    assert timeline.durations(10.0) == {"INTERRUPT": 1.5, "REPLACE": 3.0, "RESUME": 4.5}


@pytest.mark.parametrize(("nodes", "ranks"), [(0, 1), (1, 0), (-1, 4)])
def test_settings_refuse_an_empty_job(nodes, ranks):
    with pytest.raises(ValueError, match=f"nodes={nodes}, ranks_per_node={ranks}"):
        Settings(nodes, ranks)
