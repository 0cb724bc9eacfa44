"""The coordinator in a world where anything may fail at any moment: see world.py; invariants.py
has the checks at every command."""

from __future__ import annotations

import os
import re
from collections import Counter
from functools import cache

import pytest

from tests.core.scan import again, failure, play

SEEDS = 2000
# of each kind, of a range that nobody has played yet: 2 s of one CPU at most
FRESH = {"plain": 100, "moves": 40, "lead": 100, "follow": 100, "elastic": 60}
FRESH |= {"beside-lead": 20, "beside-follow": 20}


def blocks(count, now):
    """Numbers of blocks of seeds; all but `now` are played by `make test-all` alone."""
    return [pytest.param(b, marks=[pytest.mark.long] if b >= now else []) for b in range(count)]


@cache
def played(block):
    """Count the events in a tenth of all seeds, and how they ended."""
    counts, outcomes = Counter(), Counter()
    for seed in range(block * SEEDS // 10, (block + 1) * SEEDS // 10):
        world, outcome = play("plain", seed)
        counts += world.counts
        outcomes[outcome] += 1
    return counts, outcomes


@pytest.mark.parametrize("block", blocks(10, 2))
def test_every_job_ends_and_what_must_hold_holds(block):
    assert sum(played(block)[1].values()) == SEEDS // 10


@cache
def moved(block):
    """Count the events where nodes move and managers are killed meanwhile."""
    counts = Counter()
    for seed in range(block * 100, block * 100 + 100):
        world, outcome = play("moves", seed)
        counts += world.counts
        counts[outcome] += 1
    return counts


@pytest.mark.parametrize("block", blocks(6, 1))
def test_managers_are_killed_in_the_middle_of_moves(block):
    assert moved(block)["well"] > 40  # the others lose too much, or are asked to leave


@pytest.mark.long
def test_managers_are_killed_at_every_order_of_a_move():
    counts = sum((moved(block) for block in range(6)), Counter())
    orders = ["Pause", "Interrupt", "TakeOver", "KeepRecords", "Rebuild", "Restore", "Fence"]
    wanted = [f"manager killed at {order}" for order in orders]
    wanted += ["standby keeps the node", "move taken up", "put back", "closed by hot-switch"]
    assert not [name for name in wanted if counts[name] < 5], counts


@cache
def shrunk(block):
    """Count the events where replicas leave and come back, and anything fails meanwhile."""
    counts = Counter()
    for seed in range(block * 100, block * 100 + 100):
        world, outcome = play("elastic", seed)
        counts += world.counts
        counts[outcome] += 1
    return counts


@pytest.mark.parametrize("block", blocks(10, 1))
def test_each_share_is_computed_once_however_many_ranks_are_away(block):
    assert shrunk(block)["well"] > 50  # the others lose too much, or are asked to leave


@pytest.mark.long
def test_jobs_shrink_and_grow_whatever_fails_meanwhile():
    counts = sum((shrunk(block) for block in range(10)), Counter())
    for kind in ("node", "host", "rank", "stand-in", "standby", "manager"):
        for strategy in ("elastic-training", "grow"):
            harm = {n for n in counts if n.startswith(f"{kind} at ") and n.endswith(strategy)}
            assert sum(counts[name] for name in harm) >= 3, (kind, strategy)
    assert sum(n for name, n in counts.items() if re.match("leg at .*, grow", name)) >= 5
    wanted = """
        closed by elastic-training; closed by grow; records taken; no records taken; node grows;
        idle node grows; put back; standby keeps the node; killed, as it is away;
        fenced while it is cut off; manager killed in a move; sealed; launcher stopped
    """
    names = [name for line in wanted.split(";") if (name := line.strip())]
    assert not [name for name in names if counts[name] < 5], counts


@cache
def with_clusterd(role, block):
    counts, outcomes = Counter(), Counter()
    for seed in range(block * 100, block * 100 + 100):
        world, outcome = play(role, seed)
        counts += world.counts
        outcomes[outcome] += 1
    return counts, outcomes


@pytest.mark.parametrize("block", blocks(3, 1))
@pytest.mark.parametrize("role", ["lead", "follow"])
def test_clusterd_cuts_delays_repeats_and_contradicts_itself(role, block):
    assert sum(with_clusterd(role, block)[1].values()) == 100


@pytest.mark.long
def test_clusterd_is_told_of_everything():
    counts = sum((with_clusterd("follow", block)[0] for block in range(3)), Counter())
    calls = ["ReportProcessFault 0", "ReportStopComplete 0", "ReportRecoverStrategy 0"]
    calls += ["ReportStopComplete 404", "ReportRecoverStatus 0", "ReportRecoverStatus 406"]
    assert not [call for call in calls if counts[f"told {call}"] < 5], counts


def test_no_container_has_more_faults_than_it_may():
    worlds = [play("limited", seed)[0] for seed in range(60)]
    ended = [w for w in worlds if w.seed % 3 == 0 and w.counts["GiveUp"]]
    assert len(ended) > 5
    assert all(n.faults <= w.seed % 3 for w in worlds for n in w.nodes)
    assert any(n.faults for w in worlds for n in w.nodes)


@pytest.mark.parametrize("seed", range(10))
def test_without_trouble_there_is_no_incident(seed):
    world, outcome = play("quiet", seed)
    assert outcome == "well"
    assert not world.counts["Interrupt"]
    assert world.counts["Release"] == 1


@pytest.mark.long
def test_everything_that_can_go_wrong_does():
    """The world above is not a quiet one."""
    counts, outcomes = Counter(), Counter()
    for block in range(10):
        counts += played(block)[0]
        outcomes += played(block)[1]
    assert outcomes["well"] > SEEDS // 20
    assert outcomes["gave up"] > SEEDS // 100
    wanted = """
        closed by retry; closed by recover-in-place; closed by recover; closed by hot-switch;
        prepared; not prepared; put back; former lost; move done; move not done; node lost;
        node cut; node comes back; standby lost; state recorded; state saved; sealed; taken over;
        GiveUp; RestartAll; Kill; new manager; took charge; manager stood still; connection lost;
        arrived in time; quit; repeated; answers lost; link; raise; RestartNPU; PreSeparateNPU;
        SeparateNPU; all; Release; page; pages; same page; other; unfit; network; broken link;
        hang; loop; hangs; stuck; stuck found; long first step; long operation;
        interrupted in user code; progress probe unanswered; pause done; pause not done;
        continue done; killed: it hangs; killed: the memory page at x has failed again;
        killed: on-chip memory fault, and retry is not configured;
        killed: the device's context is gone; killed: its connections failed again;
        killed: it has failed  times in this incident; killed: silent in INTERRUPT for  s
    """
    names = [name for line in wanted.split(";") if (name := line.strip())]
    assert not [name for name in names if counts[name] < 25], counts


@pytest.mark.parametrize("kind", FRESH)
def test_fresh_seeds(kind, record_property):
    """pytest names the range at its end (tests/conftest.py)."""
    first = 10**6 + int.from_bytes(os.urandom(4), "big")
    record_property("drawn", f"{again(kind, first)} --count {FRESH[kind]}")
    whys = {seed: failure(kind, seed) for seed in range(first, first + FRESH[kind])}
    assert not [f"{again(kind, seed)}: {why}" for seed, why in whys.items() if why]


def test_the_same_seed_is_the_same_story():
    first, second = play("plain", 7)[0], play("plain", 7)[0]
    assert first.trace == second.trace
