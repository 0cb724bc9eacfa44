"""What hooks, schedules, forwards and attributes of the protected objects hold."""

from __future__ import annotations

import functools
import threading
from collections import deque
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch import nn

from taskd.worker.discovery import held, members
from taskd.worker.state import plain
from taskd.worker.state.attributes import Attributes
from taskd.worker.state.looks import Space
from taskd.worker.state.part import Content
from taskd.worker.state.stored_attributes import Exchanges, into, like

calls = 0
table = {"calls": 0}


class Mean:
    def __init__(self) -> None:
        self.value, self.inner = 0.0, SimpleNamespace(untouched=True)

    def add(self) -> None:
        self.value += 1.5


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.means = [Mean(), Mean()]
        self.nested = {"a": {"calls": 0, "last": deque([0.0], maxlen=2)}, "b": [{"calls": 0}]}

    def forward(self, x):
        global calls
        calls += 1
        table["calls"] += 1
        for mean in self.means:
            mean.add()
        self.nested["a"]["calls"] += 1
        self.nested["a"]["last"].append(float(calls))
        self.nested["b"][0]["calls"] += 1
        return self.layer(x)


def counting():
    count, late = 0, None

    def hook(module, inputs, output, default=[0]):
        nonlocal count, late
        count += 1
        default[0] += 1
        late = "made by the first call"
        hook.of_function = count

    hook.of_function = 0
    return hook, lambda: (count, late, list(hook.__defaults__[0]), hook.of_function)


class Rate:
    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, epoch: int) -> float:
        self.asked += 1
        return 1.0

    def of_gradient(self, gradient):
        self.asked += 100


def steady(counts, epoch):
    counts["asked"] += 1
    return 1.0


class Source(Mean):
    """Whoever loops over it has its place."""

    def __next__(self):
        self.add()


class Odd:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Rank:
    """One process of a rank."""

    def __init__(self) -> None:
        global calls
        calls, table["calls"] = 0, 0
        self.net = Net()
        hook, self.counted = counting()
        self.net.layer.register_forward_hook(hook)
        self.rate, self.counts = Rate(), {"asked": 0}
        self.net.layer.weight.register_hook(self.rate.of_gradient)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.schedulers = {
            "rate": torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate),
            "steady": torch.optim.lr_scheduler.LambdaLR(
                self.optimizer, functools.partial(steady, self.counts)
            ),
        }
        self.attributes = Attributes({"model": self.net}, {"optimizer": self.optimizer})
        for name, space in self.find().items():
            self.attributes.add(name, space)

    def find(self, known=()):
        optimizers = {"optimizer": self.optimizer}
        return held.find({"model": self.net}, optimizers, self.schedulers, known)

    def train(self) -> None:
        self.net(torch.ones(1, 2)).sum().backward()
        for scheduler in self.schedulers.values():
            scheduler.step()

    def all(self):
        a, b = self.net.nested["a"], self.net.nested["b"]
        means = [mean.value for mean in self.net.means]
        nested = a["calls"], list(a["last"]), b[0]["calls"]
        return (
            *(calls, table["calls"], means, nested),
            *(self.counted(), self.rate.asked, self.counts["asked"]),
        )


@pytest.mark.parametrize("again", [False, True])
def test_all_of_it_goes_back(again):
    """`again`: in another process."""
    rank = Rank()
    start = rank.all()
    rank.train()
    one, data = rank.all(), plain.encode(rank.attributes.changed())
    rank.train()
    assert len({str(start), str(one), str(rank.all())}) == 3
    if again:
        rank = Rank()
        assert rank.all() == start
    rank.attributes.put(Content(data))
    assert rank.all() == one
    rank.attributes.put(Content(plain.encode({})))
    assert rank.all() == start if again else rank.all()[:4] == start[:4]


def test_names_are_of_what_refers_to_it():
    assert sorted(Rank().find()) == [
        "model.layer",
        "model.layer._forward_hooks[0]",
        "model.layer._forward_hooks[0].__dict__",
        "model.layer.weight.__dict__",
        "model.layer.weight._backward_hooks[0].__self__",
        "model.means[0]",
        "model.means[1]",
        "model.nested",
        "model.nested['a']",
        "model.nested['b'][0]",
        "steady.lr_lambdas[0]()",
        "tests.worker.test_held.Net.forward",
    ]


def test_what_is_left_alone():
    rank = Rank()
    rank.net.writer = SimpleNamespace()
    rank.net.shown, rank.net.threaded = Mean(), Mean()
    rank.net.threaded.lock = threading.Lock()
    rank.net.of_numpy = numpy.poly1d([1, 2])
    rank.net.long = [Mean() for _ in range(held.ITEMS + 1)]
    rank.net.itself = rank.net
    rank.net.source, rank.net.odd = Source(), Odd()
    found = rank.find(known=[rank.net.shown, rank.net.means[0]])
    names = [name for name in found if name.startswith("model.") and "layer" not in name]
    nested = ["model.nested", "model.nested['a']", "model.nested['b'][0]"]
    assert names == ["model.means[1]", *nested, "model.odd"]


def test_a_space_of_a_function_has_what_it_keeps():
    count, never = 0, 1

    def function(default=[1]):
        nonlocal count
        global calls
        calls = count = never
        return default

    variables = members.of_function(function)
    assert dict(variables) == {"count": 0, "never": 1, "default 0": [1], "calls": calls}
    variables["count"], variables["calls"] = 7, 8
    assert (count, calls) == (7, 8)
    del variables["count"]
    assert len(variables) == 3 and "count" not in variables


class Holding(nn.Module):
    pass


class Keeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.mean = torch.zeros(2), torch.zeros(2)

    def keep(self, batch: torch.Tensor) -> None:
        self.last = batch
        self.mean.add_(batch)


def test_a_batch_in_an_attribute_is_not_written_to():
    module = Keeping()
    attributes, mean = Attributes({"model": module}), module.mean
    batches = [torch.full((2,), float(i)) for i in (1, 2, 3)]
    module.keep(batches[0])
    record = plain.encode(attributes.changed())
    module.keep(batches[1])
    attributes.put(Content(record))
    assert module.last.tolist() == [1.0, 1.0] and batches[1].tolist() == [2.0, 2.0]
    assert module.mean is mean and mean.tolist() == [1.0, 1.0]
    module.keep(batches[1])
    attributes.changed()
    module.keep(batches[2])
    attributes.changed()
    attributes.put(Content(record))  # two steps back: what was seen last is another batch
    assert [b.tolist() for b in batches] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_one_object_in_two_attributes_that_were_two():
    def made():
        module, zeros, rows = Holding(), torch.zeros(2), [0]
        module.a, module.b, module.c, module.d = zeros, zeros, rows, rows
        return module, Attributes({"model": module})

    first, attributes = made()
    first.b, first.d = torch.ones(2), [1]
    record = plain.encode(attributes.changed())
    second, attributes = made()
    assert second.a is second.b
    attributes.put(Content(record))
    assert (second.a.tolist(), second.b.tolist()) == ([0.0, 0.0], [1.0, 1.0])
    assert (second.c, second.d) == ([0], [1])


def test_exchanges():
    a, b, c = (torch.zeros(1) for _ in range(3))
    exchanges = Exchanges()
    assert not exchanges.look("grows", [a]) and not exchanges.look("grows", [a, b])
    assert exchanges.look("moves", [a, b]) is False and exchanges.look("moves", [b, c])
    assert exchanges.look("moves", [b, c])
    exchanges.look("gone", [torch.zeros(1)])
    assert exchanges.look("gone", [torch.zeros(1)])


def test_tensors_of_containers_are_written_to_only_if_they_are_the_same():
    window = deque([torch.zeros(1), torch.ones(1)], maxlen=2)
    inside = list(window)

    def outer(there, _):
        return there is window

    assert into(window, [torch.full((1,), 5.0), torch.full((1,), 6.0)], outer) is window
    assert [t.item() for t in window] == [5, 6] and [t.item() for t in inside] == [0, 1]
    again = into(window, [torch.full((1,), 7.0), torch.full((1,), 8.0)])
    assert [t.item() for t in again] == [7, 8]
    held_by = {"x": inside[1], "array": numpy.zeros(1)}
    made = like(held_by, {"x": torch.full((1,), 9.0), "array": numpy.ones(1)})
    assert made["x"].item() == 9 and inside[1].item() == 1 and held_by["array"][0] == 0


@pytest.mark.parametrize("value", [torch.ones(2), [torch.ones(2), 1], {"a": torch.ones(2), "b": 1}])
def test_what_is_put_is_on_the_device_of_what_was_there(value):
    there = torch.zeros(2, device="meta")
    present = {"a": there} if type(value) is dict else [there] if type(value) is list else there
    made = into(present, value, lambda there, _: False)
    held_by = made.values() if type(made) is dict else made if type(made) is list else [made]
    assert next(iter(held_by)).device.type == "meta"


def test_a_space_does_not_have_what_is_not_its_authors():
    space = Space({"a": 1, "_parameters": {}}, {"_parameters"})
    assert space.own() == [("a", 1)]
