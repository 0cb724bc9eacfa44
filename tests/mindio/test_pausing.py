"""Where a rank whose framework repairs itself waits in a pause, on a real state page."""

from __future__ import annotations

import queue
import sys
import threading
import uuid
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from taskd.adaptor.mindio import tested
from taskd.adaptor.mindio.handlers import Handlers
from taskd.adaptor.mindio.pausing import Pausing
from taskd.adaptor.mindio.updates import Stopped
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages import from_rank, to_rank
from taskd.worker.communication.agent_client import AgentClient

LIMIT = 60  # a guard against hanging, never a measure
TEST = to_rank.StressTest(1, ((0, (0,)),))


class Rank:
    """A rank's training thread at its pauses, and the agent's part of them."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.agent, self.interrupted = AgentClient(0), False
        self.changed, self.handlers = threading.Condition(), Handlers()
        self.sent: queue.Queue[Any] = queue.Queue()
        self.agent.channel = SimpleNamespace(send=self.sent.put)  # type: ignore[assignment]
        self.pausing = Pausing(self)  # type: ignore[arg-type]
        self.ends: queue.Queue[str] = queue.Queue()

    def begins(self, step: int) -> None:
        def run() -> None:
            try:
                self.pausing.wait(step)
                self.ends.put("goes on")
            except Stopped:
                self.ends.put("stopped")

        threading.Thread(target=run, daemon=True).start()

    def orders(self, *orders: Any) -> None:
        for order in orders:
            if isinstance(order, to_rank.Pause):
                self.page.pause(order.step)
            elif isinstance(order, to_rank.Continue):
                self.page.pause(None)
            self.pausing.ordered(order)
            with self.changed:
                self.changed.notify_all()

    def says(self) -> Any:
        return self.sent.get(timeout=LIMIT)

    def end(self) -> str:
        return self.ends.get(timeout=LIMIT)


@pytest.fixture
def rank(monkeypatch) -> Iterator[Rank]:
    device = SimpleNamespace(stress_test=lambda test: 0, switch_nics=lambda ranks, backup: True)
    monkeypatch.setattr(tested, "device", lambda: device)
    with Page.create(f"/dev/shm/taskd-test-{uuid.uuid4().hex}", 1) as page:
        slot.attach(page.path, 0)
        yield Rank(page)
        slot.detach()


def paused(step: int) -> from_rank.RankPaused:
    return from_rank.RankPaused(0, 0, step)


def test_a_rank_goes_on_to_a_boundary_that_has_moved(rank):
    rank.page.pause(5)
    rank.begins(5)
    assert rank.says() == paused(5)
    assert rank.page.read(0).phase == slot.PAUSED
    rank.orders(to_rank.Pause(7))
    assert rank.end() == "goes on"
    assert rank.page.read(0).phase == slot.COMPUTING
    rank.begins(6)
    assert rank.end() == "goes on"
    rank.begins(7)
    assert rank.says() == paused(7)
    rank.orders(to_rank.Continue())
    assert rank.end() == "goes on" and rank.sent.empty()


def test_a_rank_that_is_told_again_reports_again(rank):
    """The manager that has ordered the pause before is gone."""
    rank.page.pause(5)
    rank.begins(5)
    for _ in range(3):
        assert rank.says() == paused(5)
        rank.orders(to_rank.Pause(5))
    assert rank.says() == paused(5)
    # a pause that ends and begins at once
    rank.orders(to_rank.Continue(), to_rank.Pause(5))
    assert rank.says() == paused(5)
    rank.orders(to_rank.Continue())
    while not rank.sent.empty():
        assert rank.says() == paused(5)
    assert rank.end() == "goes on"


def test_a_rank_that_has_begun_the_step_says_so(rank, monkeypatch):
    """The agent finds it between two updates, where it has looked for a pause already."""
    real = slot.progress

    def progress(step: int, phase: int) -> None:
        rank.page.pause(step)
        real(step, phase)

    monkeypatch.setattr(slot, "progress", progress)
    rank.begins(5)
    assert rank.says() == from_rank.RankPassed(0, 0, 5)
    assert rank.end() == "goes on"


def test_a_task_that_comes_with_the_order_to_pause_is_done(rank):
    """The page is seen before the order: whichever is read when, the task is not lost."""
    for step in range(50):
        rank.page.pause(step)
        rank.begins(step)
        assert rank.says() == paused(step)
        rank.orders(to_rank.Pause(step), TEST)
        while (said := rank.says()) == paused(step):
            pass
        assert said == from_rank.TaskDone(0, 0, 1, ((0, 0, ""),))
        rank.orders(to_rank.Continue())
        assert rank.end() == "goes on"
        while not rank.sent.empty():
            assert rank.says() == paused(step)


def test_a_task_of_others_is_not_answered(rank):
    rank.page.pause(5)
    rank.begins(5)
    assert rank.says() == paused(5)
    rank.orders(to_rank.StressTest(1, ((1, (0,)),)), to_rank.SwitchNics(2, (1,), (True,)))
    assert rank.says() == from_rank.TaskDone(0, 0, 2, ((0, 0, ""),))


def test_a_repair_ends_the_pause_and_what_was_ordered_in_it(rank):
    rank.page.pause(5)
    rank.begins(5)
    assert rank.says() == paused(5)
    with rank.changed:
        rank.interrupted = True
        rank.pausing.ordered(TEST)
        rank.changed.notify_all()
    assert rank.end() == "stopped"
    rank.pausing.forget()
    rank.interrupted = False
    rank.begins(5)
    assert rank.says() == paused(5)
    rank.orders(to_rank.Continue())
    assert rank.end() == "goes on" and rank.sent.empty()


# -- what there is to test a device with -----------------------------------------------------------


@pytest.fixture
def modules(monkeypatch):
    """Sets what is loaded."""

    def load(**found: Any) -> None:
        for name in ("torch", "mindspore"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        for name, attributes in found.items():
            module = ModuleType(name.replace("__", "."))
            vars(module).update(attributes)
            monkeypatch.setitem(sys.modules, name.replace("__", "."), module)

    return load


def test_mindspore_s_own_functions_are_called(modules):
    calls = []
    modules(
        mindspore={},
        mindspore__tools={"stress_detect": lambda what: calls.append(what) or 3},
        mindspore__communication={},
        mindspore__communication__management={
            "_comm_switch_nic": lambda ranks, backup: calls.append((ranks, backup)) or True
        },
    )
    found = tested.device()
    assert [found.stress_test("aic"), found.stress_test("p2p")] == [3, 3]
    assert found.switch_nics((0, 2), (True, False)) is True
    assert calls == ["aic", "hccs", ([0, 2], [True, False])]


def test_an_older_mindspore_has_it_elsewhere_or_not_at_all(modules):
    modules(mindspore={}, mindspore__utils={"stress_detect": lambda what: 2})
    found = tested.device()
    assert found.stress_test("aic") == 2
    with pytest.raises(NotImplementedError, match="not possible: this MindSpore has no mindspore"):
        found.switch_nics((0,), (True,))


def test_without_a_framework_that_taskd_knows_nothing_is_possible(modules):
    modules()
    with pytest.raises(NotImplementedError, match="not possible: this rank has loaded neither"):
        tested.device().stress_test("aic")


def test_torch_on_a_cpu_has_no_tests():
    pytest.importorskip("torch")
    with pytest.raises(NotImplementedError, match="cpu has no stress test"):
        tested.device().stress_test("aic")
