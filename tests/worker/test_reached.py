"""The script's own objects: what of them is recorded, and what is named."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections import deque
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from taskd.worker.discovery import changing, held, project, reached
from taskd.worker.discovery.loop_variables import LoopVariables
from taskd.worker.discovery.reached import Reached
from taskd.worker.state import looks, plain
from taskd.worker.state.attributes import Attributes
from taskd.worker.state.part import Content
from taskd.worker.state.stored_attributes import into


class Meter:
    def __init__(self) -> None:
        self.total, self.name, self.seen = 0.0, "mean", []
        self.window = [torch.zeros(1), torch.zeros(1)]
        self.first = self.window[0]


class Stopper:
    def __init__(self) -> None:
        self.stop, self.count = False, 0


class Saver:
    def __init__(self) -> None:
        self.thread, self.other, self.count, self.busy = None, None, 0, False


def warned(caplog) -> list[str]:
    return [record.message for record in caplog.records if record.levelname == "WARNING"]


class Late:
    def __init__(self) -> None:
        self.count = 0.0


@dataclass(frozen=True)
class Frozen:
    step: int = 0


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.register_buffer("mean", torch.zeros(1))


class Rank:
    """A process with `variables`, which it finds as a loop begins."""

    def __init__(self, **variables) -> None:
        self.net = nn.Linear(2, 2)
        self.variables = variables
        self.attributes = Attributes({"model": self.net})
        parts = SimpleNamespace(arrange=lambda: None)
        state = SimpleNamespace(
            attributes=self.attributes, parts=parts, modules={"model": self.net}
        )
        self.reached = Reached(
            state,
            lambda names: held.find({"model": self.net}, {}, {}, [self.net], (), names),
            [self.net],
            LoopVariables([], refuses=False),
        )
        self.reached.look = self.look  # not at the variables of this test
        self.reached.begin()

    def look(self) -> None:
        self.reached._look([("main", self.variables)], loop=True)

    def record(self) -> bytes:
        return plain.encode(self.attributes.changed())

    def put(self, data: bytes) -> None:
        self.attributes.put(Content(data))

    def unrecorded(self, step) -> list[str]:
        """What a step changes that no record has."""
        roots = [("main", self.variables)]
        self.reached.glance = lambda: changing.look([*self.reached._values(roots)], set())
        before = self.reached.glance()
        step()
        self.record()
        return self.reached.unrecorded(before, self.reached.glance())


def made() -> dict:
    return {"meters": {"a": Meter(), "b": [Meter()]}, "loss": Loss(), "steady": Meter()}


def changed(variables: dict) -> None:
    variables["meters"]["a"].total += 1.5
    variables["meters"]["b"][0].seen.append(3)
    variables["meters"]["b"][0].window[0].add_(1)
    variables["loss"].calls += 1
    variables["loss"].mean.add_(2)


def test_what_changes_goes_to_a_new_process_and_back():
    one, other = Rank(**made()), Rank(**made())
    start = one.record()
    changed(one.variables)
    first = one.record()
    changed(one.variables)
    one.variables["steady"].name = "other"  # not by then
    for rank in (one, other):
        rank.put(first)
        meters, loss = rank.variables["meters"], rank.variables["loss"]
        assert (meters["a"].total, meters["b"][0].seen) == (1.5, [3])
        assert (loss.calls, loss.mean.item()) == (1, 2)
        # the same tensor still has two names
        assert meters["b"][0].first is meters["b"][0].window[0]
        assert meters["b"][0].first.item() == 1
    assert one.variables["steady"].name == "mean"
    one.put(start)
    assert one.variables["meters"]["a"].total == 0 and one.variables["loss"].calls == 0


def test_only_what_has_changed_is_restored():
    """A path, a host or a process id is its process's own."""
    theirs = Meter()
    theirs.name = "of its process"
    one, other = Rank(meter=Meter()), Rank(meter=theirs)
    one.variables["meter"].total = 2.0
    other.put(one.record())
    assert (theirs.total, theirs.name) == (2.0, "of its process")


def test_what_changes_as_data_are_drawn_is_left_to_who_draws():
    one, other = Rank(noise=Meter()), Rank(noise=Meter())

    def drawn(noise):
        while True:
            noise.total += 1
            yield noise.total

    data = drawn(one.variables["noise"])
    assert [one.attributes.draw(data) for _ in range(3)] == [1, 2, 3]
    one.put(one.record())
    assert one.variables["noise"].total == 3
    one.attributes.pass_begins()
    one.attributes.draw(data)
    other.put(one.record())
    assert other.variables["noise"].total == 0
    # tried twice, each time from where the pass began
    for _ in range(2):
        other.attributes.draw_again()
        assert other.attributes.draw(drawn(other.variables["noise"])) == 4


def test_an_object_of_a_later_pass_takes_the_place_of_the_former():
    rank = Rank(meter=Meter(), epoch=0)
    rank.variables["meter"].total = 5.0
    rank.record()
    former, rank.variables["meter"] = rank.variables["meter"], Meter()
    later, left_over = Late(), Meter()
    left_over.output = torch.zeros(1, requires_grad=True) * 2
    rank.variables |= {"later": later, "left_over": left_over}
    rank.look()
    meter = rank.variables["meter"]
    meter.total = left_over.total = later.count = 1.0
    recorded = rank.record()
    meter.total = former.total = left_over.total = later.count = 9.0
    rank.put(recorded)
    assert (meter.total, former.total, later.count) == (1.0, 9.0, 1.0)
    # of a variable that the loop assigns: it would keep the memory of a step
    assert left_over.total == 9.0


def test_a_record_waits_for_what_is_found_later():
    one, other = Rank(meter=Meter()), Rank()
    one.variables["meter"].total = 4.0
    data = one.record()
    other.put(data)
    assert plain.same(plain.decode(other.record()), plain.decode(data))
    other.variables["meter"] = Meter()
    other.reached._names.clear()
    other.look()
    assert other.variables["meter"].total == 4.0


def test_what_a_step_adds_to_parameters_and_torchs_own_objects():
    one, other = Rank(), Rank()
    one.net.weight.steps = 3
    one.net.bias.steps = 1
    one.net.calls = 2
    one.reached.look_again()
    other.put(one.record())
    assert (other.net.weight.steps, other.net.bias.steps, other.net.calls) == (3, 1, 2)
    one.net.weight.steps = 4
    one.put(one.record())
    assert one.net.weight.steps == 4


@pytest.mark.parametrize("kind", [list, dict])
def test_tensors_that_are_others_by_now_are_not_written_to(kind):
    """The container has the batch, which is given again."""
    rank, batch = Rank(meter=Meter()), torch.ones(1)
    meter = rank.variables["meter"]

    def keep(value):
        meter.window = [value] if kind is list else {"x": value}

    keep(torch.zeros(1))
    rank.record()
    recorded = rank.record()
    keep(batch)
    rank.record()
    rank.put(recorded)
    assert batch.item() == 1


def test_what_no_record_has_is_named():
    variables = {
        "state": SimpleNamespace(),
        "meter": Meter(),
        "holder": Meter(),
    }
    variables["holder"].frozen = Frozen()
    variables["holder"].count = itertools.count()
    variables["holder"].rows = [[0, {"a": 1}]] * 70
    variables["holder"].matrix = numpy.zeros(100_000)
    rank = Rank(**variables)

    def step():
        holder = rank.variables["holder"]
        rank.variables["meter"].total += 1
        holder.total += 1
        holder.frozen = replace(holder.frozen, step=1)
        next(holder.count)
        holder.rows[3][0] += 1
        holder.matrix += 1

    assert rank.unrecorded(step) == [
        "main.holder.count",
        "main.holder.frozen",
        "main.holder.matrix",
        "main.holder.rows[0][0]",
    ]
    assert rank.unrecorded(lambda: None) == []


def test_a_flag_that_a_signal_has_set_stays():
    """No repeat of the step sets it again."""
    rank = Rank(stopper=Stopper())
    stopper = rank.variables["stopper"]
    stopper.count = 1
    recorded = rank.record()
    stopper.stop, stopper.count = True, 2
    rank.put(recorded)
    assert stopper.stop and stopper.count == 1


def test_what_a_replacement_has_changed_in_its_set_up_is_put_back():
    """It runs what lies between finished passes again."""
    one, other = Rank(stopper=Stopper()), Rank(stopper=Stopper())
    one.variables["stopper"].stop, one.variables["stopper"].count = True, 3
    recorded = one.record()
    other.variables["stopper"].count = 7
    other.record()
    other.put(recorded)
    assert (other.variables["stopper"].stop, other.variables["stopper"].count) == (True, 3)


def test_results_that_an_object_keeps_do_not_keep_it_from_being_restored(caplog):
    """A loss with its graph, a list of outputs, a history that grows."""
    one, other = Rank(saver=Saver()), Rank(saver=Saver())
    saver = one.variables["saver"]
    saver.count, saver.busy, saver.other = 2, True, torch.zeros(1, requires_grad=True) * 2
    saver.rows = []
    one.record()
    saver.rows += range(looks.ITEMS + 1)
    recorded = one.record()
    assert "its attribute rows has outgrown" in caplog.text
    caplog.clear()
    for rank in (one, other):
        rank.variables["saver"].count = 9
        rank.put(recorded)
        assert (rank.variables["saver"].count, rank.variables["saver"].busy) == (2, True)
    assert saver.other is not None and len(saver.rows) > looks.ITEMS and not warned(caplog)


def test_an_object_that_holds_a_thread_by_now_is_left_alone():
    one, other = Rank(saver=Saver()), Rank(saver=Saver())
    saver = one.variables["saver"]
    saver.count, saver.busy = 1, True
    before = one.record()
    saver.thread, saver.count, saver.busy = threading.Thread(), 2, False
    recorded = one.record()
    for data in (before, recorded):
        one.put(data)
        assert (saver.count, saver.busy) == (2, False)
    other.put(recorded)
    assert (other.variables["saver"].count, other.variables["saver"].busy) == (0, False)


def test_a_flag_is_not_put_without_the_object_that_it_tells_of(caplog):
    one, other = Rank(saver=Saver()), Rank(saver=Saver())
    start = one.record()
    one.variables["saver"].other, one.variables["saver"].busy = object(), True
    recorded = one.record()
    other.put(recorded)
    assert not other.variables["saver"].busy and "not protected: main.saver.other" in caplog.text
    one.put(start)
    assert one.variables["saver"].busy and one.variables["saver"].other is not None


def test_a_large_value_does_not_take_the_others_back():
    rank = Rank(saver=Saver())
    saver = rank.variables["saver"]
    saver.count, saver.other = 5, torch.zeros(looks.LARGEST)
    recorded = rank.record()
    saver.count, saver.other = 6, None
    rank.put(recorded)
    assert (saver.count, saver.other) == (5, None)


def test_what_steps_change_beside_what_data_change_is_the_steps(caplog):
    one, other = Rank(stats=Saver()), Rank(stats=Saver())

    def data(stats):
        while True:
            stats.drawn = getattr(stats, "drawn", 0) + 1
            yield stats.drawn

    stats = one.variables["stats"]
    drawn = data(stats)
    one.attributes.draw(drawn)
    stats.count = 3
    one.attributes.draw(drawn)
    recorded = one.record()
    stats.count = 4
    one.attributes.draw(drawn)
    one.put(recorded)
    assert (stats.count, stats.drawn) == (3, 3)
    other.put(recorded)
    theirs = other.variables["stats"]
    assert theirs.count == 3
    other.attributes.draw_again()
    assert theirs.count == 3 and not warned(caplog)
    one.attributes.draw(drawn)
    stats.drawn = 0
    one.record()
    assert "its attribute drawn is changed by steps and as data are drawn" in caplog.text


def test_names_keep_their_order():
    """Whoever sends each of them sends them in the same order."""
    names = ["x", "loss", "acc", "lr", "grad", "time"]
    one, other = Rank(meters={"m": Meter()}), Rank(meters={"m": Meter()})
    for name in names:
        one.variables["meters"][name] = 1.0
    other.put(one.record())
    assert list(other.variables["meters"]) == ["m", *names]


@pytest.mark.parametrize(
    "value",
    [
        torch.zeros(1, device="meta"),
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.qint8),
        torch.sparse_coo_tensor([[0]], [1.0], (2,)),
        torch.nested.nested_tensor([torch.zeros(1)]),
        "x" * (looks.LARGEST + 1),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_odd_values_end_no_job(value):
    rank = Rank(holder=Saver())
    start = rank.record()
    rank.variables["holder"].odd = rank.variables["holder"].other = value
    rank.variables["holder"].count = 1
    rank.record()
    rank.variables["late"] = Meter()
    rank.variables["late"].odd = value
    rank.reached._names.clear()
    rank.look()
    rank.put(start)
    assert changing.look([("main", rank.variables)], set())


def test_an_odd_object_does_not_hide_the_others():
    gone = Meter()
    rank = Rank(a=weakref.proxy(gone), meter=Meter())
    del gone
    gc.collect()
    rank = Rank(**rank.variables)
    rank.variables["meter"].total = 2.0
    assert "main.meter" in plain.decode(rank.record())
    found = changing.look(rank.variables.items(), set())
    assert [holder.path for holder in found.values()][:1] == ["meter"]


def test_an_object_is_not_kept_alive():
    rank = Rank(teacher=nn.Sequential(Loss(), nn.BatchNorm1d(2)))
    teacher = weakref.ref(rank.variables["teacher"][0])
    rank.variables["teacher"][0].calls = 1
    assert "main.teacher.0" in plain.decode(rank.record())
    del rank.variables["teacher"]
    gc.collect()
    assert teacher() is None
    rank.look()
    assert "main.teacher.0" not in plain.decode(rank.record())


@pytest.mark.parametrize(
    ("present", "recorded"),
    [([1], {"a": 1}), ({}, [1]), (set(), [1]), (bytearray(), None), (deque(), {1}), (None, [1])],
)
def test_a_value_of_another_kind_takes_the_place(present, recorded):
    assert into(present, recorded) == recorded


def test_an_expanded_tensor_is_exchanged():
    found = into(torch.ones(1).expand(4), torch.arange(4.0))
    assert found.tolist() == [0, 1, 2, 3]


def test_libraries_are_looked_into_but_not_what_they_show():
    """Nor where a trainer's integration protects."""
    assert project.is_looked_into("gymnasium.vector", project.ANY)
    assert not project.is_looked_into("rich.progress", project.ANY)
    assert not project.is_looked_into("torch.nn", project.ANY)
    space = {"__name__": "taskd.integrations.lightning", "asks": reached._is_integrated}
    assert eval("asks()", space) and not reached._is_integrated()
