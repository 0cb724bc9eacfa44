"""A rank of a framework that repairs itself asks for what taskd does not do: the job ends with the
reason, whatever goes on in it."""

from __future__ import annotations

import pytest

from taskd.messages import from_rank
from tests.core import scenario
from tests.core.scenario_play import Play

REASON = "it asks for the moon, which taskd does not have: ask for cheese"


@pytest.fixture
def play() -> Play:
    made = Play()
    scenario.take(made, "form 4 ranks on 2 nodes [ladder=retry,recover-in-place,exit]")
    made.coordinator.job.handlers = True
    return made


def asks(play: Play, rank: int = 1, strategy: str = "exit", reason: str = REASON) -> list[str]:
    return play.step(from_rank.StrategyRequested(rank, 0, strategy, reason))


def ended(play: Play) -> bool:
    return play.coordinator.job.over


def test_a_job_that_trains_ends_with_the_reason(play):
    out = "\n".join(asks(play))
    assert ended(play) and f"rank 1: {REASON}" in out


def test_a_repair_is_given_up(play):
    scenario.take(play, "rank 2 died: killed by SIGKILL @ computing 5")
    assert not ended(play)
    assert REASON in "\n".join(asks(play)) and ended(play)


def test_before_all_ranks_are_protected_all_are_restarted():
    made = Play()
    scenario.take(made, "job 2 ranks on 1 nodes")
    scenario.take(made, "node 0 joins: ranks=0-1")
    scenario.take(made, "rank 1 joined")
    out = "\n".join(asks(made))
    assert "restart" in out.lower() and REASON in out


def test_a_new_manager_that_does_not_know_all_ranks_yet_interrupts_the_rank_which_asks_again(play):
    scenario.take(play, "the manager is replaced by a new one")
    joins = "joins: joined={} generation=1 handlers=1"
    scenario.take(play, "node 0 " + joins.format("0-1"))
    assert not asks(play) and not ended(play)
    out = "\n".join(scenario.take(play, "node 1 " + joins.format("2-3")))
    assert "interrupt" in out.lower(), out
    asks(play)
    assert ended(play)


def test_a_program_of_the_framework_is_still_named_as_such(play):
    out = "\n".join(asks(play, reason=""))
    assert ended(play) and "rank 1: its program requests exit" in out
