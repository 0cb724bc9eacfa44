"""What a rank does at each order of a repair, the doing itself left out."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Plan, Position
from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.repair.outcomes import Continued, Resumed
from taskd.worker.repair.session import RepairSession

PLAN = Plan(7, (0,), (), (), "as it is")


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

    def _restore(self, plan: Plan) -> Resumed:
        return Resumed(plan.step, {"of": plan.step}, 3)

    def _digest(self) -> str:
        return "ab12"


@pytest.fixture
def page(monkeypatch) -> SimpleNamespace:
    page = SimpleNamespace(interruption=0)
    monkeypatch.setattr(slot, "interruption", lambda: page.interruption)
    return page


def rank(session: Line, kind: type[Rank] = Rank) -> Rank:
    return kind(0, 0, session, *[None] * 7, device=None, pipelines=Pipelines(), variables=None)


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
    assert isinstance(rank(session).wait_for_orders(position, paused=True), Continued)
    assert session.said == []


@pytest.mark.parametrize("place", range(2, 5))
def test_a_hold_that_ends_in_a_repair_does_not_end_the_repair(page, place):
    """What was restored is of another step than the one that the rank was paused before."""
    session = Line()
    session.orders = repair(page, 1)
    session.orders.insert(place, to_rank.Continue())
    outcome = rank(session).wait_for_orders(position, paused=True)
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
    assert rank(session).wait_for_orders(position) == Resumed(7, {"of": 7}, 3)
    assert [m.interruption for m in session.said if isinstance(m, from_rank.RankInterrupted)] == [
        1,
        2,
    ]


def test_what_fails_is_told_and_the_rank_stays(page):
    class Failing(Rank):
        def _digest(self) -> str:
            if not session.said or not isinstance(session.said[-1], from_rank.RankFailed):
                raise OSError("no memory")
            return "ab12"

    session = Line()
    *begin, resume = repair(page, 1)
    session.orders = [*begin, begin[-1], resume]
    assert isinstance(rank(session, Failing).wait_for_orders(position), Resumed)
    assert [type(m) for m in session.said] == [
        from_rank.RankInterrupted,
        from_rank.RankRebuilt,
        from_rank.RankFailed,
        from_rank.RankRestored,
    ]
    assert session.said[2].reason == "OSError: no memory"
