"""Each interruption is answered, with its own number, on a real state page; and what the handlers
get where a checkpoint is to be loaded."""

from __future__ import annotations

import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from taskd import logs
from taskd.adaptor.mindio import exceptions, handlers, processor
from taskd.adaptor.mindio.enums import Action, RepairType, ReportState
from taskd.adaptor.mindio.framework_ttp import functions, tft_exception_handler
from taskd.adaptor.mindio.orders import Orders
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Load, Plan, RankSet, ReplicaGroup
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
        self.cleans: list[int | None] = []  # in its answers
        self.carrier = Orders(self)
        self.thread = threading.Thread(target=self.carrier.run, daemon=True)
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
        self.cleans.append(message.position.clean)
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
        if not self.thread.is_alive():
            self.thread.start()
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


def test_every_rank_is_told_the_exception_before_each_load(rank, monkeypatch):
    noted: list[str] = []
    monkeypatch.setattr(exceptions, "_registered", {})
    exceptions.register("PRECISION ERROR", "RS_RETRY", lambda text: noted.append(text) or "")
    restored(rank, Load(5, "PRECISION ERROR, load ckpt step=5"), 5)
    assert noted == ["PRECISION ERROR, load ckpt step=5"]
    rank.report(ReportState.RS_RETRY, "", "PRECISION ERROR, load ckpt step=5")
    restored(rank, Load(5, "PRECISION ERROR, load ckpt step=5"), 5)
    assert len(noted) == 2, "what it noted may be used up"


def test_what_all_have_to_load_is_remembered_until_training_goes_on(rank):
    """By every rank: the one that asked, and the manager, may be gone."""
    rank.page.interrupt(1)
    rank.orders.put(to_rank.Interrupt(1, "a fault", "retry", load=Load(5, "x")))
    rank.on_answer[1] = lambda: rank.interrupt(2)
    assert rank.carries_out(2) == [1, 2]
    assert rank.loads == [Load(5, "x")] * 2
    rank.resume(to_rank.Resume(2, 3, 5))
    rank.waiting = True  # it has left its training again
    rank.carrier._stopped = True
    rank.enough.clear()
    rank.interrupt(3)
    rank.carries_out(3)
    assert rank.loads[2] is None


@pytest.mark.parametrize(("optimizers", "load"), [((), Load()), (((0, 0, 1),), None)])
def test_memory_that_a_repair_has_begun_to_write_is_nobodys_source(rank, optimizers, load):
    rank.updates.step = 9
    rank.handlers.register(handlers.REPAIR, lambda *given: 1 / 0, None)
    rank.orders.put(to_rank.Restore(0, 3, Plan(9, RankSet(), RankSet(), (), "", optimizers, load)))
    rank.carries_out(0)
    assert rank.done.wait(LIMIT)
    rank.interrupt(1)
    rank.carries_out(1)
    assert (rank.cleans, rank.loads) == ([None], [load])


def test_what_one_round_has_dropped_the_next_does_not_find_again(rank):
    """A clean handler that drops the model finds nothing in the failed memory the second time."""
    answers = [0, 2]
    rank.handlers.register(handlers.CLEAN, lambda *given: answers.pop(0), None)
    rank.report(ReportState.RS_UCE)

    def again() -> None:
        rank.carrier._built = True  # the groups were made again meanwhile
        rank.interrupt(2)

    rank.on_answer[1] = again
    rank.interrupt(1)
    assert rank.carries_out(2) == [1, 2]
    assert rank.cleans == [None, None]


def test_a_function_is_called_again_with_what_handlers_have_put_in(rank, monkeypatch):
    monkeypatch.setattr(processor, "_current", rank)
    monkeypatch.setattr(rank, "finish", lambda: None)
    seen: list[tuple[Any, ...]] = []

    @tft_exception_handler
    def train(*given: Any) -> None:
        seen.append(given)
        if len(seen) == 1:
            rank.handlers.args[0] = "another model"
            rank.act(Action.RETRY)
            raise RuntimeError("FORCE STOP")

    train("model", 1)
    train("of a second training", 2)
    assert seen == [("model", 1), ("another model", 1), ("of a second training", 2)]
    assert rank.handlers.args == ["of a second training", 2]
    functions.tft_set_step_args(["set"])
    train("third")
    assert rank.handlers.args == ["set"]


def test_mindspores_handler_loads_nothing(rank, monkeypatch):
    sent: list[Any] = []
    monkeypatch.setattr(rank, "send", sent.append)
    monkeypatch.setitem(sys.modules, "mindspore", None)
    rank.set_replicas((ReplicaGroup((1, 2), 2), ReplicaGroup((0, 1), 2)))
    monkeypatch.delitem(sys.modules, "mindspore")
    rank.set_replicas((ReplicaGroup((0, 1), 2),))
    assert [m.loads for m in sent] == [False, True] and rank.kinds == (0,)
