"""The callbacks of a program beside the training: what they are told, in which order, and what may
be chosen."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest

from taskd.adaptor.mindio import callbacks, controller_ttp, processor
from taskd.adaptor.mindio.callbacks import ACTIONS, Callbacks

LIMIT = 60  # a guard against hanging, never a measure
FAULTY = ((1, 0), (3, 2))


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(callbacks, "registered", {})


class Program:
    """Registers callbacks and notes their calls."""

    def __init__(self, *actions: str) -> None:
        self.calls: queue.Queue[tuple[Any, ...]] = queue.Queue()
        for action in actions:
            assert callbacks.register(action, self.noting(action)) == 0

    def noting(self, action: str):
        return lambda *arguments: self.calls.put((action, *arguments))

    def next(self) -> tuple[Any, ...]:
        return self.calls.get(timeout=LIMIT)


def repair(told: Callbacks, strategy: str = "recover") -> None:
    told.interrupted(FAULTY, strategy)
    told.stopped()
    told.resumed()


def test_one_repair_in_the_documented_order():
    program, requested = Program(*ACTIONS), []
    told = Callbacks(requested.append)
    assert not told.under_way
    told.interrupted(FAULTY, "recover")
    assert told.under_way
    told.stopped()
    told.resumed()
    assert not told.under_way
    faulty = {1: 0, 3: 2}
    assert program.next() == ("report_fault_ranks", faulty, {1: "", 3: ""})
    assert program.next() == ("report_stop_complete", 0, "stop ok", faulty)
    assert program.next() == ("report_strategies", faulty, ["exit", "dump", "retry", "recover"])
    assert program.next() == (
        "report_result",
        0,
        "Mindio do repair operation ok",
        faulty,
        "recover",
    )
    assert program.calls.empty() and requested == []


@pytest.mark.parametrize(
    ("strategy", "offered"),
    [
        ("retry", ["exit", "dump", "recover", "retry"]),
        ("recover", ["exit", "dump", "retry", "recover"]),
        ("dump", ["exit", "recover", "retry", "dump"]),
    ],
)
def test_the_strategy_that_is_carried_out_is_offered_last(strategy, offered):
    """A program that chooses the last one changes nothing."""
    program, requested = Program(*ACTIONS), []
    told = Callbacks(requested.append)
    told.interrupted(FAULTY, strategy)
    told.stopped()
    assert told.offered == offered
    assert [program.next() for _ in range(3)][-1][-1] == offered
    assert told.choose(offered[-1]) == 0 and requested == []


def test_a_second_repair_forgets_the_first():
    program = Program(*ACTIONS)
    told = Callbacks(lambda strategy: None)
    repair(told, "retry")
    told.interrupted(((0, 1),), "recover")
    told.stopped()
    calls = [program.next() for _ in range(7)]
    assert calls[4:] == [
        ("report_fault_ranks", {0: 1}, {0: ""}),
        ("report_stop_complete", 0, "stop ok", {0: 1}),
        ("report_strategies", {0: 1}, ["exit", "dump", "recover"]),  # its process is gone
    ]


@pytest.mark.parametrize("missing", ACTIONS)
def test_none_is_called_unless_all_four_are_registered(missing):
    program = Program(*(action for action in ACTIONS if action != missing))
    told = Callbacks(lambda strategy: None)
    repair(told)
    callbacks.register(missing, program.noting(missing))
    repair(told, "retry")
    # the first repair has left no trace: what comes first is the second's
    calls = [program.next() for _ in range(4)]
    assert [call[0] for call in calls] == list(ACTIONS) and calls[-1][-1] == "retry"
    assert program.calls.empty()


def test_functions_that_take_less():
    """MindSpore's first one takes the ranks alone."""
    program = Program()
    functions = {
        "report_fault_ranks": lambda ranks: program.calls.put(ranks),
        "report_stop_complete": lambda code, text, ranks: program.calls.put(code),
        "report_strategies": lambda ranks, strategies: program.calls.put(strategies[-1]),
        "report_result": lambda: program.calls.put("end"),
    }
    for action, function in functions.items():
        callbacks.register(action, function)
    repair(Callbacks(lambda strategy: None), "retry")
    assert [program.next() for _ in range(4)] == [{1: 0, 3: 2}, 0, "retry", "end"]


@pytest.mark.parametrize("failing", ACTIONS)
def test_one_that_raises_does_not_keep_the_next_from_being_called(failing, caplog):
    program = Program(*ACTIONS)

    def fail(*arguments):
        program.calls.put((failing,))
        raise RuntimeError("its own")

    callbacks.register(failing, fail)
    told = Callbacks(lambda strategy: None)
    repair(told)
    repair(told)
    assert [program.next()[0] for _ in range(8)] == [*ACTIONS, *ACTIONS]
    assert f"the callback {failing} failed" in caplog.text


def test_a_slow_one_does_not_hold_up_the_repair():
    program, may_end = Program(*ACTIONS), threading.Event()
    callbacks.register("report_fault_ranks", lambda ranks: may_end.wait(LIMIT))
    told = Callbacks(lambda strategy: None)
    repair(told)
    assert not told.under_way and program.calls.empty()
    may_end.set()
    assert [program.next()[0] for _ in range(3)] == list(ACTIONS[1:])


def test_what_a_callback_does_with_its_dict_is_its_own_affair():
    program = Program(*ACTIONS)
    callbacks.register("report_fault_ranks", lambda ranks, codes: ranks.clear() or codes.clear())
    repair(Callbacks(lambda strategy: None))
    assert program.next()[-1] == {1: 0, 3: 2}


# -- what the program chooses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "result", "requested"),
    [
        ("recover", 0, []),  # it is being carried out
        ("dump", 0, ["dump"]),
        ("exit", 0, ["exit"]),
        ("retry", 1, []),
        ("downgrade", 1, []),
        ("", 1, []),
    ],
)
def test_choices_during_a_repair(chosen, result, requested):
    asked: list[str] = []
    told = Callbacks(asked.append)
    told.interrupted(FAULTY, "recover")
    told.stopped()
    assert (told.choose(chosen), asked) == (result, requested)


def test_choices_without_a_repair():
    asked: list[str] = []
    told = Callbacks(asked.append)
    for strategy in ("recover", "retry", ""):
        assert told.choose(strategy) == 1
    repair(told)
    assert told.choose("recover") == 1, "that one is over"
    assert told.choose("dump") == 0 and asked == ["dump"]


def test_a_choice_made_within_the_callback():
    """As MindSpore's stand-in for MindCluster makes it."""
    asked: queue.Queue[str] = queue.Queue()
    told = Callbacks(asked.put)
    Program(*ACTIONS)
    callbacks.register("report_strategies", lambda ranks, strategies: told.choose(strategies[0]))
    told.interrupted(FAULTY, "recover")
    told.stopped()
    assert asked.get(timeout=LIMIT) == "exit"


@pytest.mark.parametrize(
    ("action", "function"),
    [("report_fault", print), ("", print), (None, print), (ACTIONS[0], None), (ACTIONS[0], "x")],
)
def test_what_cannot_be_registered(action, function, caplog):
    assert controller_ttp.tft_register_mindx_callback(action, function) == 1
    assert callbacks.registered == {}
    assert ", ".join(ACTIONS) in caplog.text


# -- what the program tells the controller ---------------------------------------------------------


class Rank:
    """As far as controller_ttp uses it."""

    generation = 1

    def __init__(self) -> None:
        self.requested: list[str] = []
        self.request = self.requested.append
        self.callbacks = Callbacks(self.request)


@pytest.fixture
def rank(monkeypatch) -> Rank:
    rank = Rank()
    monkeypatch.setattr(processor, "_current", rank)
    return rank


def test_notifications_are_confirmed_while_a_repair_is_under_way(rank):
    c = controller_ttp

    def both() -> tuple[int, int]:
        faulty = {1: 0, 2: 2}
        stop = c.tft_notify_controller_stop_train(faulty)
        return stop, c.tft_notify_controller_on_global_rank(faulty, 3600)

    assert both() == (1, 1)
    rank.callbacks.interrupted(FAULTY, "recover")
    assert both() == (0, 0)
    assert c.tft_notify_controller_stop_train({1: 0}, "pause", 10) == 1
    for faulty in ([1], {1: 3}, {1: "0"}, {"1": 0}, {1: True}, None):
        assert c.tft_notify_controller_stop_train(faulty) == 1, faulty
        assert c.tft_notify_controller_on_global_rank(faulty) == 1, faulty
    for time in (0, 3601, -1, 1.5, True):
        assert c.tft_notify_controller_on_global_rank({1: 0}, time) == 1, time
    assert c.tft_notify_controller_stop_train({1: 0}, "halt") == 1
    rank.callbacks.resumed()
    assert both() == (1, 1)


def test_strategies_and_dumps_reach_the_rank(rank):
    c = controller_ttp
    rank.callbacks.interrupted(FAULTY, "retry")
    assert c.tft_notify_controller_change_strategy("retry") == 0
    assert c.tft_notify_controller_change_strategy("migration", "x") == 1
    assert c.tft_notify_controller_change_strategy("unknown") == 1
    assert c.tft_notify_controller_change_strategy("exit") == 0
    assert c.tft_notify_controller_dump() == 0
    assert c.tft_notify_controller_prepare_action("hot switch", {1: 0}) == 1
    assert rank.requested == ["exit", "dump"]


def test_the_switch_is_on_once_the_job_is_protected(rank):
    assert controller_ttp.tft_query_high_availability_switch() is True
    rank.generation = 0
    assert controller_ttp.tft_query_high_availability_switch() is False
