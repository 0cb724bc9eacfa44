"""What modules keep in plain attributes while they train."""

from __future__ import annotations

from collections import deque

import numpy
import pytest
import torch
from torch import nn

from taskd.worker.state import attributes, looks, plain
from taskd.worker.state.attributes import Attributes
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.part import Content


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.seen = 0
        self.mean = torch.zeros(2)
        self.last = deque([1.0], maxlen=3)
        self.table = numpy.zeros(2)
        self.names = {"a": 1}
        self.made_late: torch.Tensor
        self.config = object()

    def train_a_little(self) -> None:
        self.seen += 1
        self.mean += 1
        self.last.append(float(self.seen))
        self.table[0] += 1
        self.names["b"] = self.seen
        self.made_late = torch.full((2,), float(self.seen))

    def all(self):
        late = self.made_late.tolist() if "made_late" in self.__dict__ else None
        return (
            self.seen,
            self.mean.tolist(),
            list(self.last),
            self.table.tolist(),
            dict(self.names),
            late,
        )


def test_arrays_and_tensors_without_a_version():
    """None of them has a comparison that a step may end in."""
    module = nn.Module()
    module.__class__ = type("Own", (nn.Module,), {"__module__": __name__})
    module.table, module.feature = numpy.zeros(20_000), torch.zeros(2)
    module.pair = (numpy.float64(1), 2)
    attributes = Attributes({"model": module})
    for step in range(3):
        module.table = module.table + 1
        with torch.inference_mode():
            module.feature = torch.full((2,), float(step))
        module.pair = (numpy.float64(step), 2)
        attributes.changed()
    del module.table
    record = plain.encode(attributes.changed())
    with torch.inference_mode():
        module.feature.fill_(7)
    attributes.put(Content(record))
    assert module.feature.tolist() == [2.0, 2.0]


def both():
    """A module and its counterpart in another process, with what records their attributes."""
    return [
        (m := nn.ModuleDict({"a": Counting(), "b": Counting()}), Attributes({"model": m}))
        for _ in range(2)
    ]


def put(attributes, rows):
    attributes.put(Content(plain.encode(rows)))


def through_bytes(rows):
    return plain.decode(plain.encode(rows))


def test_nothing_is_recorded_while_nothing_changes():
    (module, paused), _ = both()
    assert paused.changed() == {}
    module["a"].train_a_little()
    assert list(paused.changed()) == ["model.a"]


def test_a_step_back_and_another_process():
    (module, paused), (theirs, there) = both()
    start = module["a"].all()
    module["a"].train_a_little()
    rows = through_bytes(paused.changed())
    expected = module["a"].all()
    kept = module["a"].mean, module["a"].last, module["a"].names
    module["a"].train_a_little()
    module["b"].train_a_little()  # had not changed at that step
    put(paused, rows)
    put(there, rows)
    assert module["a"].all() == theirs["a"].all() == expected and module["b"].all() == start
    # others may refer to them
    assert kept == (module["a"].mean, module["a"].last, module["a"].names)
    assert all(
        x is y
        for x, y in zip(kept, (module["a"].mean, module["a"].last, module["a"].names), strict=True)
    )
    assert plain.encode(paused.changed()) == plain.encode(rows) == plain.encode(there.changed())
    put(paused, {})
    assert module["a"].all() == start


def test_one_thing_that_is_too_large_leaves_the_module_alone(caplog):
    """Of a flag and its cache, the flag alone would be a lie."""

    class Rotary(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.length, self.cache = 0, None

        def fill(self, length):
            self.length, self.cache = length, torch.zeros(length, looks.LARGEST)

    module, theirs = Rotary(), Rotary()
    paused, there = Attributes({"m": module}), Attributes({"m": theirs})
    module.fill(2)
    unrecorded = {"m": {attributes.OTHERS: None}}
    assert paused.changed() == unrecorded and not caplog.text
    put(there, paused.changed())
    assert theirs.length == 0 and theirs.cache is None
    put(paused, {})
    assert module.length == 2
    module.fill(3)
    assert paused.changed() == unrecorded and "its attribute cache is too large" in caplog.text
    recorded = paused.changed()
    module.length, module.cache = 9, None
    paused.changed()
    put(paused, recorded)  # of what it had then nothing is known
    assert module.length == 9
    module.fill(4)
    paused.changed()
    assert caplog.text.count("too large") == 1


def metric(kind, **attributes):
    """A metric of torchmetrics, whose states may be lists of tensors."""
    made = type("Gathering", (kind,), {})()
    vars(made).update(attributes)
    return made


def test_a_metric_is_all_state():
    kind = type("Metric", (nn.Module,), {"__module__": "torchmetrics.metric"})
    module, theirs = (metric(kind, matrix=torch.zeros(300, 300), seen=[]) for _ in range(2))
    paused, there = Attributes({"m": module}), Attributes({"m": theirs})
    module.matrix += 1
    module.seen += [torch.full((10_000,), float(i)) for i in range(looks.ITEMS + 1)]
    rows = through_bytes(paused.changed())
    module.seen.append(torch.zeros(1))
    module.matrix += 1
    put(paused, rows)
    put(there, rows)
    for found in (module, theirs):
        assert found.matrix.sum() == 90_000 and [t.mean() for t in found.seen] == [*range(65)]
    module.seen[3] += 1  # in place
    assert through_bytes(paused.changed())["m"]["seen"][3].mean() == 4
    module.matrix = torch.zeros(looks.METRIC)
    rows = through_bytes(paused.changed())
    with pytest.raises(WouldDiverge, match="m has a state of [0-9,]+ bytes; up to 4,194,304"):
        put(there, rows)


def test_tensors_in_containers_are_compared_one_by_one():
    holder = type("Holder", (nn.Module,), {})
    module, theirs = holder(), holder()
    for made in (module, theirs):
        made.pair, made.named = None, {}
    paused, there = Attributes({"m": module}), Attributes({"m": theirs})
    for number in range(3):
        module.pair = torch.full((4,), float(number)), torch.zeros(2)  # a hidden state, anew
        module.named["a"] = torch.full((3,), float(number))
        put(there, through_bytes(paused.changed()))
        assert theirs.pair[0].mean() == theirs.named["a"].mean() == number
    module.odd = {torch.ones(1)}
    assert "odd" not in paused.changed()["m"] and "odd" in paused.changed()["m"][attributes.OTHERS]


def test_what_a_record_cannot_have_stays():
    class Hooked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.times, self.hooks = 0, []

    module, theirs = Hooked(), Hooked()
    paused, there = Attributes({"m": module}), Attributes({"m": theirs})
    module.times, module.hooks = 1, [object()]
    put(there, through_bytes(paused.changed()))
    assert theirs.times == 1 and theirs.hooks == []


def test_what_comes_and_goes_within_a_step_is_not_looked_at():
    module = Counting()
    paused = Attributes({"m": module})
    module.loss = torch.ones(2, requires_grad=True) * 2  # has a graph
    module.engine = object()
    assert paused.changed() == {}
    put(paused, {})
    assert module.engine is not None


def test_extra_state_is_what_the_module_says():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.history = [object()]
            self.scale = 1.0

        def get_extra_state(self):
            return {"scale": self.scale}

        def set_extra_state(self, state):
            self.scale = state["scale"]

    module, theirs = nn.Sequential(Scaled()), nn.Sequential(Scaled())
    paused, there = Attributes({"m": module}), Attributes({"m": theirs})
    module[0].scale = 3.0
    put(there, through_bytes(paused.changed()))
    assert theirs[0].scale == 3.0
