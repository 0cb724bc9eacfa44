"""Each interruption is answered, with its own number, on a real state page; and what is asked for
and not done ends the job."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskd import logs
from taskd.adaptor.mindio import handlers, processor
from taskd.adaptor.mindio.enums import Action, ReportState
from taskd.adaptor.mindio.orders import Orders
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages import from_rank, to_rank
from taskd.worker.process import belonging

LIMIT = 60  # a guard against hanging, never a measure


class Rank(processor.Processor):
    """A rank whose training thread has left the training. `on_answer`: called after an answer has
    been sent, before the rank does anything else."""

    def __init__(self, page: Page) -> None:
        super().__init__(0)
        self.agent.channel = self  # type: ignore[assignment]
        self.page = page
        self.generation, self.waiting = 1, True
        self.calls: list[str] = []
        self.answers: list[int] = []
        self.asked: list[from_rank.StrategyRequested] = []
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
        if isinstance(message, from_rank.StrategyRequested):
            self.asked.append(message)
            return
        assert isinstance(message, from_rank.RankInterrupted), message
        self.answers.append(message.interruption)
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


# -- what is not done ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "error", "told"),
    [
        (
            ReportState.RS_RETRY,
            "PRECISION ERROR: loss is nan, load ckpt step=5",
            "it asks that all ranks load the checkpoint of step 5 (PRECISION ERROR: loss is nan,"
            " load ckpt step=5), which taskd does not do in running processes, and a repair would"
            " keep a wrong state: start the job again from the checkpoint of step 5 (Megatron:"
            " with 5 in latest_checkpointed_iteration.txt)",
        ),
        (
            ReportState.RS_RETRY,
            "",
            "it asks that all ranks load the last checkpoint, which taskd does not do in running"
            " processes, and a repair would keep a wrong state: start the job again from the last"
            " checkpoint",
        ),
        (
            ReportState.RS_UCE_CORRUPTED,
            "HBM MULTI BIT ECC. time us=7",
            "its memory failed before its last update began, so all ranks have to load the last"
            " checkpoint (HBM MULTI BIT ECC. time us=7), which taskd does not do in running"
            " processes, and a repair would keep a wrong state: start the job again from the last"
            " checkpoint",
        ),
    ],
)
def test_a_state_that_only_a_checkpoint_has_ends_the_job_and_says_how_to_go_on(
    rank, state, error, told
):
    rank.report(state, "", error)
    assert rank.asked == [from_rank.StrategyRequested(0, 0, "exit", told)]


def test_a_rank_that_asked_asks_each_manager_again(rank):
    rank.report(ReportState.RS_RETRY, "", "load ckpt step=5")
    rank.interrupt(1)
    assert rank.carries_out(1) == [1]
    assert len(rank.asked) == 2 and rank.asked[0] == rank.asked[1]


def test_a_long_text_is_cut(rank):
    rank.report(ReportState.RS_RETRY, "", "x" * 100_000 + "load ckpt step=5")
    assert "step 5" in rank.asked[0].reason and len(rank.asked[0].reason) < 500
