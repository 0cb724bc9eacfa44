"""Each interruption is answered, with its own number, on a real state page; and what the handlers
get where a checkpoint is to be loaded."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskd import logs
from taskd.adaptor.mindio import exceptions, handlers, processor
from taskd.adaptor.mindio.enums import Action, RepairType, ReportState
from taskd.adaptor.mindio.orders import Orders
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Load, Plan, RankSet
from taskd.worker.process import belonging

LIMIT = 60  # a guard against hanging, never a measure


class Rank(processor.Processor):
    """A rank whose training thread has left the training. `on_answer`: called after an answer has
    been sent, before the rank does anything else."""

    def __init__(self, page: Page) -> None:
        super().__init__(0, 4)
        self.agent.channel = self  # type: ignore[assignment]
        self.page = page
        self.generation, self.waiting = 1, True
        self.calls: list[str] = []
        self.answers: list[int] = []
        self.asked: list[from_rank.RankFaulted] = []
        self.loads: list[Load | None] = []  # in its answers
        self.results: list[from_rank.RankRestored | from_rank.RankFailed] = []
        self.done = threading.Event()
        self.enough = threading.Event()
        self.expected = 0
        self.on_answer: dict[int, Callable[[], None]] = {}
        self.handlers.register(handlers.STOP, lambda *given: self.calls.append("stop"), None)
        self.handlers.register(handlers.CLEAN, self.clean, None)
        self.in_clean: Callable[[], None] = lambda: None

    def clean(self, *given: Any) -> int:
        self.calls.append(f"clean for {self.repair_type}")
        then, self.in_clean = self.in_clean, lambda: None
        then()
        return 0

    def send(self, message: Any) -> None:
        if isinstance(message, from_rank.RankFaulted):
            self.asked.append(message)
            return
        if isinstance(message, from_rank.RankRestored | from_rank.RankFailed):
            self.results.append(message)
            self.done.set()
            return
        assert isinstance(message, from_rank.RankInterrupted), message
        self.answers.append(message.interruption)
        self.loads.append(message.position.load)
        self.on_answer.get(message.interruption, lambda: None)()
        if len(self.answers) >= self.expected:
            self.enough.set()

    def interrupt(self, number: int, strategy: str = "retry") -> None:
        """As the agent does: first the page, then the order."""
        self.page.interrupt(number)
        self.orders.put(to_rank.Interrupt(number, "a fault", strategy))

    def carries_out(self, answers: int) -> list[int]:
        """What it answers, once it has answered so often."""
        self.expected = answers
        threading.Thread(target=Orders(self).run, daemon=True).start()
        if not answers:
            return []
        assert self.enough.wait(LIMIT), f"answered {self.answers}, asked for {answers}"
        return self.answers


@pytest.fixture
def rank(monkeypatch) -> Iterator[Rank]:
    monkeypatch.setattr(logs, "setup", lambda name: None)
    monkeypatch.setattr(belonging, "dies_with_launcher", lambda: None)
    with Page.create(f"/dev/shm/taskd-test-{uuid.uuid4().hex}", 1) as page:
        slot.attach(page.path, 0)
        yield Rank(page)
        slot.detach()


def test_one_that_comes_while_the_last_is_answered(rank):
    rank.on_answer[1] = lambda: rank.interrupt(2)
    rank.interrupt(1)
    assert rank.carries_out(2) == [1, 2]
    assert rank.calls == ["stop", "clean for retry"], "it is stopped already"


def test_one_that_comes_while_the_device_is_cleaned_says_what_it_is_for(rank):
    rank.in_clean = lambda: rank.interrupt(2, "recover-in-place")
    rank.interrupt(1)
    assert rank.carries_out(2) == [1, 2]
    assert rank.repair_type == "recover"


def test_one_whose_number_is_there_before_its_order(rank):
    rank.in_clean = lambda: rank.page.interrupt(2)
    rank.on_answer[1] = lambda: rank.orders.put(to_rank.Interrupt(2, "a fault", "dump"))
    rank.interrupt(1)
    assert rank.carries_out(2) == [1, 2]
    assert rank.repair_type == "dump"


def test_one_that_was_overtaken_before_it_began_is_left_to_the_newer_one(rank):
    rank.interrupt(1)
    rank.interrupt(2, "recover-in-place")
    assert rank.carries_out(1) == [2]
    assert rank.calls == ["stop", "clean for recover"]


def test_one_that_is_repeated_is_answered_once(rank):
    rank.interrupt(1)
    rank.interrupt(1)
    rank.on_answer[1] = lambda: rank.interrupt(2)
    assert rank.carries_out(2) == [1, 2]


def test_a_rank_that_was_told_to_go_on_does_not_count_as_stopped(rank):
    """Its training thread may not have woken when the next interruption comes."""
    rank.act(Action.RETRY)
    assert not rank.waiting
    assert rank.wait_for_action() is Action.RETRY
    assert not rank.waiting


# -- a checkpoint is asked for ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "error", "step"),
    [
        (ReportState.RS_RETRY, "PRECISION ERROR: loss is nan, load ckpt step=5", 5),
        (ReportState.RS_RETRY, "", -1),
        (ReportState.RS_UCE_CORRUPTED, "HBM MULTI BIT ECC. time us=7", -1),
    ],
)
def test_a_state_that_only_a_checkpoint_has_is_reported_and_again_to_each_manager(
    rank, state, error, step
):
    rank.report(state, "", error)
    (asked,) = rank.asked
    assert (asked.fault, asked.load) == (from_rank.MEMORY, Load(step, error))
    rank.interrupt(1)
    assert rank.carries_out(1) == [1]
    assert rank.loads == [asked.load]


def test_a_long_text_is_cut_and_the_step_stays(rank):
    rank.report(ReportState.RS_RETRY, "", "x" * 100_000 + "load ckpt step=5")
    (asked,) = rank.asked
    assert asked.load.step == 5 and asked.load.text.endswith("load ckpt step=5")
    assert len(asked.text) <= 300 and len(asked.load.text) < 1100


# -- and is loaded ---------------------------------------------------------------------------------


def restored(rank, load: Load, loads: int | None) -> list[tuple[Any, ...]]:
    """What the repair and rollback handlers get; the repair handler reports `loads`."""
    got: list[tuple[Any, ...]] = []

    def repair(step, need_rebuild, error_ranks, info, args, ctx):
        got.append((step, need_rebuild, error_ranks, info))
        rank.loaded = rank.loaded if loads is None else loads

    rank.handlers.register(handlers.REPAIR, repair, None)
    rank.handlers.register(handlers.ROLLBACK, lambda *given: got.append(given[:1]), None)
    plan = Plan(9, RankSet(), RankSet(), (), "", load=load)
    rank.done.clear()
    rank.orders.put(to_rank.Restore(0, 3, plan))
    rank.carries_out(0)
    assert rank.done.wait(LIMIT)
    return got


def info(kind: RepairType, kinds: list[int]) -> dict[str, Any]:
    own = [0] * len(kinds)
    return {
        **{"type": kinds, "repair_type": kind.value, "src": own, "dst": own},
        "rank_list": [0, 1, 2, 3],
    }


def test_the_handler_gets_what_the_interface_says_and_the_rollback_the_step_loaded(rank):
    rank.kinds = (0, 1)
    got = restored(rank, Load(5), 5)
    assert got == [(9, False, [0, 0], info(RepairType.RT_LOAD_CKPT, [0, 1])), (5,)]
    assert rank.results == [from_rank.RankRestored(0, 0, 3, "the checkpoint of step 5", 5)]
    assert rank.repair_step == 5


def test_where_memory_has_failed_the_model_is_made_again(rank):
    rank.report(ReportState.RS_UCE_CORRUPTED, "", "HBM MULTI BIT ECC")
    got = restored(rank, Load(), 8)
    assert got == [(9, True, [0], info(RepairType.RT_LOAD_REBUILD, [0])), (8,)]


def test_a_handler_that_does_not_say_what_it_has_loaded_has_failed(rank):
    rank.loaded = 5  # by an earlier one
    restored(rank, Load(), None)
    (failed,) = rank.results
    assert "tft_report_load_ckpt_step was not called" in failed.reason


def test_a_rank_that_has_not_raised_it_learns_of_another_ranks_exception(rank, monkeypatch):
    noted: list[str] = []
    monkeypatch.setattr(exceptions, "_registered", {})
    exceptions.register("PRECISION ERROR", "RS_RETRY", lambda text: noted.append(text) or "")
    restored(rank, Load(5, "PRECISION ERROR, load ckpt step=5"), 5)
    assert noted == ["PRECISION ERROR, load ckpt step=5"]
    rank.report(ReportState.RS_RETRY, "", "PRECISION ERROR, load ckpt step=5")
    restored(rank, Load(5, "PRECISION ERROR, load ckpt step=5"), 5)
    assert len(noted) == 1
