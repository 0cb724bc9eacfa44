"""What a rank does at each order of a repair, the doing itself left out."""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Plan, Position, RankSet
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.repair import dumping
from taskd.worker.repair.outcomes import Continued, LeftAlone, Resumed
from taskd.worker.repair.restore import Restorer
from taskd.worker.repair.session import RepairSession
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import TrainingState

PLAN = Plan(7, RankSet.of([0]), RankSet(), (), "as it is")


class Line:
    """Orders to the rank, and what it says. An order that is a function happens at its turn."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.said: list[Any] = []

    def receive(self) -> Any:
        while callable(order := self.orders.pop(0)):
            order()
        return order

    def send(self, message: Any) -> None:
        self.said.append(message)


class Rank(RepairSession):
    def _rebuild(self, order: to_rank.Rebuild) -> None:
        self.built_at = order.interruption


class Memory(Restorer):
    def restore(self, plan: Plan, loop: Loop) -> tuple[Resumed, str]:
        return Resumed(plan.step, {"of": plan.step}, 3), "ab12"  # type: ignore[arg-type]


@pytest.fixture
def page(monkeypatch) -> SimpleNamespace:
    page = SimpleNamespace(interruption=0)
    monkeypatch.setattr(slot, "interruption", lambda: page.interruption)
    monkeypatch.setattr(slot, "progress", lambda step, phase: None)
    return page


class Loop:
    def restoring(self, step: int) -> None: ...

    def restored(self, entry: Any) -> None: ...

    def holds(self) -> Position:
        return Position(8, 8)


def rank(line: Line, memory: type[Restorer] = Memory) -> Rank:
    agent = AgentClient(0)
    agent.channel = line  # type: ignore[assignment]
    parts = {f.name: None for f in fields(Rank) if f.default is MISSING}
    state, random = (
        TrainingState({"model": torch.nn.Linear(1, 1)}),
        RandomState(torch.device("cpu")),
    )
    given = {
        "rank": 0,
        "agent": agent,
        "state": state,
        "random": random,
        "gradients": Gradients(()),
    }
    made = Rank(**parts | given)  # type: ignore[arg-type]
    made.restorer = memory(made)
    return made


def position() -> tuple[Position, str]:
    return Position(8, None, frozenset({7, 8}), frozenset(), frozenset(), frozenset()), ""


def repair(page: SimpleNamespace, interruption: int) -> list[Any]:
    def interrupting() -> None:
        page.interruption = interruption

    return [
        interrupting,
        to_rank.Interrupt(interruption, "a fault"),
        to_rank.Rebuild(interruption, 2, ("here", 1), False),
        to_rank.Restore(interruption, 2, PLAN),
        to_rank.Resume(interruption, 2, 7),
    ]


def test_a_held_rank_goes_on(page):
    session = Line()
    session.orders = [to_rank.Pause(8), to_rank.Interrupt(0, "of old"), to_rank.Continue()]
    assert isinstance(rank(session).wait_for_orders(position, Loop(), paused=8), Continued)
    assert session.said == []


@pytest.mark.parametrize("place", range(2, 5))
def test_a_hold_that_ends_in_a_repair_does_not_end_the_repair(page, place):
    """What was restored is of another step than the one that the rank was paused before."""
    session = Line()
    session.orders = repair(page, 1)
    session.orders.insert(place, to_rank.Continue())
    outcome = rank(session).wait_for_orders(position, Loop(), paused=8)
    assert outcome == Resumed(7, {"of": 7}, 3)
    assert [type(m) for m in session.said] == [
        from_rank.RankInterrupted,
        from_rank.RankRebuilt,
        from_rank.RankRestored,
    ]


def test_an_overtaken_round_is_begun_again(page):
    session, second = Line(), 2
    first = repair(page, 1)[:3]
    session.orders = [*first, *repair(page, second)]
    assert rank(session).wait_for_orders(position, Loop()) == Resumed(7, {"of": 7}, 3)
    assert [m.interruption for m in session.said if isinstance(m, from_rank.RankInterrupted)] == [
        1,
        2,
    ]


def test_a_replacement_that_is_interrupted_as_it_resumes_reports(page):
    """It may see the interruption before the order to resume: then it has no position yet."""
    replacement = rank(line := Line())
    line.orders = repair(page, 1)
    # it looks for interruptions between two orders
    line.orders[-1:-1] = [lambda: setattr(page, "interruption", 2), to_rank.Interrupt(2, "a dump")]
    assert replacement.wait_for_orders(None, Loop()) == Resumed(7, {"of": 7}, 3)
    line.orders = repair(page, 2)[1:]
    assert replacement.wait_for_orders(position, Loop()) == Resumed(7, {"of": 7}, 3)
    told = [m.interruption for m in line.said if isinstance(m, from_rank.RankInterrupted)]
    assert told == [2]


def test_what_fails_is_told_and_the_rank_stays(page):
    class Failing(Memory):
        def restore(self, plan: Plan, loop: Loop) -> tuple[Resumed, str]:
            if not session.said or not isinstance(session.said[-1], from_rank.RankFailed):
                raise OSError("no memory")
            return super().restore(plan, loop)

    session = Line()
    *begin, resume = repair(page, 1)
    session.orders = [*begin, begin[-1], resume]
    assert isinstance(rank(session, Failing).wait_for_orders(position, Loop()), Resumed)
    assert [type(m) for m in session.said] == [
        from_rank.RankInterrupted,
        from_rank.RankRebuilt,
        from_rank.RankFailed,
        from_rank.RankRestored,
    ]
    assert session.said[2].reason == "OSError: no memory"


@pytest.mark.parametrize("overtaken", [False, True])
def test_what_fails_in_a_dump_is_told_unless_it_is_overtaken(page, overtaken, monkeypatch):
    """Its communicators are those from before the interruption, of a dump none are made."""

    def fails(*given: Any) -> None:
        page.interruption += overtaken
        raise OSError("the disk is full")

    monkeypatch.setattr(dumping, "record", fails)
    line = Line()
    line.orders = [
        *repair(page, 1)[:2],
        to_rank.RecordState(1, 1, 0, 7, stripes=False),
        to_rank.Unprotected("the job ends"),
    ]
    assert isinstance(rank(line).wait_for_orders(position, Loop()), LeftAlone)
    first, second = line.said
    assert first.interruption == 1
    if overtaken:
        assert second.interruption == 2
    else:
        assert second == from_rank.RankFailed(0, 0, 1, "OSError: the disk is full")


def test_a_pause_said_again_undoes_nothing_of_a_dump(page, monkeypatch):
    """The agents have not read the record yet; the end of the pause does."""
    undone: list[str] = []
    monkeypatch.setattr(dumping, "record", lambda rank, order: lambda: undone.append("undone"))
    line = Line()
    line.orders = [
        to_rank.AskPosition(5),
        to_rank.RecordState(0, 1, 0, 8, False, 5),
        to_rank.Pause(8),
        lambda: undone.append("the pause ends"),
        to_rank.Continue(),
    ]
    assert isinstance(rank(line).wait_for_orders(position, Loop(), paused=8), Continued)
    assert undone == ["the pause ends", "undone"]
    assert line.said == [
        from_rank.RankPosition(0, 0, 5, Position(8, 8), True),
        from_rank.StateSaved(0, 0, 0, (), "", 5),
        from_rank.RankPaused(0, 0, 8),
    ]


def test_a_dump_s_order_that_an_interruption_has_overtaken_is_dropped(page):
    line = Line()
    line.orders = [
        *repair(page, 1)[:2],
        to_rank.AskPosition(5),
        to_rank.RecordState(0, 1, 0, 8, False, 5),
        to_rank.CopyState(5, 0, 8),
        to_rank.SaveState(0, 1, 0, 8, "work", False, 1, 1, 5),
        to_rank.Unprotected("the job ends"),
    ]
    assert isinstance(rank(line).wait_for_orders(position, Loop(), paused=8), LeftAlone)
    assert [type(said) for said in line.said] == [from_rank.RankInterrupted]


@pytest.mark.parametrize(
    "order, told",
    [
        (to_rank.Rebuild(0, 2, ("here", 1), False, dump="step-3"), from_rank.RankFailed),
        (to_rank.SaveState(0, 2, 0, 8, "work", False, 1, 1), from_rank.RankFailed),
        (to_rank.SaveState(0, 2, 0, 8, "work", False, 1, 1, 5), from_rank.StateSaved),
        (to_rank.AskPosition(5), from_rank.StateSaved),
    ],
)
def test_only_what_belongs_to_a_dump_beside_training_fails_alone(page, order, told):
    line = Line()
    rank(line).agent.failed(order, RuntimeError("no"))
    (said,) = line.said
    assert type(said) is told
    assert getattr(said, "why", "") or said.reason == "RuntimeError: no"
