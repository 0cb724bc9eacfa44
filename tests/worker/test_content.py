"""What of a batch counts, is compared, and is given back as it was."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import enum
import functools
import io
import itertools
import pathlib
import threading
import types
import weakref

import numpy
import pytest
import torch

from taskd.worker.state import content, kept
from taskd.worker.state.content import ARGUMENTS, BATCHES, fingerprint
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.kept import EARLY, Keeper


class Bag(collections.UserDict):
    pass


class Tagged(torch.Tensor):
    pass


@dataclasses.dataclass
class Data:
    x: object


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Node:
    """Knows what it is in, as PyG's stores do."""

    def __init__(self, x):
        self.x, self.child = x, types.SimpleNamespace(parent=self, back=weakref.ref(self))


class Color(enum.Enum):
    RED = 1


Pair = collections.namedtuple("Pair", "x y")

TENSORS = {
    "plain": lambda t: t,
    "list": lambda t: [t],
    "nested": lambda t: [{"a": ({"b": [[[[[[t]]]]]]},)}],
    "bag": lambda t: Bag(x=t),
    "pair": lambda t: Pair(0, t),
    "data": Data,
    "slots": Slotted,
    "names": lambda t: types.SimpleNamespace(x=t),
    "node": Node,
    "deque": lambda t: collections.deque([t]),
    "tagged": lambda t: t.as_subclass(Tagged),
    "parameter": torch.nn.Parameter,
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[0].expand(9, 5),
    "strided": lambda t: torch.cat([t, t])[::2],
    "conjugate": lambda t: torch.complex(t, t).conj(),
    "numpy": lambda t: t.numpy(),
    "numpy, in other order": lambda t: t.numpy().T,
}


@pytest.mark.parametrize("kind", TENSORS)
def test_tensors_and_arrays_in_anything(kind):
    """The same content has the same fingerprint, another has another; what a step changes is put
    back, in the same object."""
    values = torch.arange(20.0).reshape(4, 5)
    value, same = TENSORS[kind](values.clone()), TENSORS[kind](values.clone())
    other = TENSORS[kind](values + (values < 1))
    assert content.look(value).unknown == ""
    assert fingerprint(value) == fingerprint(same) != fingerprint(other)
    if kind == "expanded":
        return  # nothing can be written to it
    made = kept.Kept(value, True, BATCHES)
    seen = content.look(value)
    with torch.no_grad():
        for one in (*seen.tensors, *seen.arrays):
            one *= 2
    assert made.changed()
    assert made.again("the batch") is value
    assert fingerprint(value) == fingerprint(same) and not made.changed()


SPARSE = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "nested": lambda t: torch.nested.nested_tensor([t, t[1:]], layout=torch.jagged),
}


@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_layouts(kind):
    values = torch.eye(4)
    make = SPARSE[kind]
    assert fingerprint(make(values)) == fingerprint(make(values.clone()))
    assert fingerprint(make(values)) != fingerprint(make(values * 2))
    assert content.look(make(values)).unknown == ""


PLAIN = [
    *([1, 2], ["a", "b"], [1.5, float("nan")], {"a": 1}, {"a": 2}, {"b": 1}, [], {}, None, True),
    *(b"ab", b"ac", "ab", range(3), {1, 2}, {1, 3}, frozenset("ab"), Color.RED),
    *(pathlib.Path("a"), torch.float32, torch.Size([2]), numpy.float32(2), Data(1), Slotted(1)),
    *(list(range(5000)), list(range(5001)), types.SimpleNamespace(x=1), [[1], [2]], [[1, 2]]),
    *(torch.tensor([1]), torch.tensor([1], dtype=torch.int32), torch.tensor([[1]])),
    *(numpy.array([1]), numpy.array(["a", "b"]), numpy.array(["a", None], object)),
]


def test_numbers_text_and_shapes_count():
    prints = [fingerprint(value) for value in PLAIN]
    twice = [i for i, j in itertools.combinations(range(len(PLAIN)), 2) if prints[i] == prints[j]]
    assert not twice, [PLAIN[i] for i in twice]
    assert prints == [fingerprint(copy.deepcopy(value)) for value in PLAIN]


def test_of_a_large_tensor_the_ends_and_places_between_are_read():
    values = torch.zeros(1_000_000)
    before = fingerprint(values)
    for at in (0, 999_999):
        other = values.clone()
        other[at] = 1
        assert fingerprint(other) != before
    assert fingerprint(values.clone().fill_(1)) != before


UNKNOWN = [
    (io.StringIO(), " is a _io.StringIO"),
    ({"x": [1, threading.Lock()]}, "['x'][1] is a _thread.lock"),
    (Data(iter([1])), "['x'] is a builtins.list_iterator"),
    ({(x := object())}, " is a builtins.set"),
]


@pytest.mark.parametrize(("value", "where"), UNKNOWN)
def test_what_cannot_be_read_is_named_once(value, where, caplog, monkeypatch):
    keeper = Keeper("the batch")
    for _ in range(3):
        assert keeper.keep(value).unknown == where
    (record,) = caplog.records
    assert record.getMessage().startswith(f"not compared: the batch{where}, whose content")
    monkeypatch.setenv("TASKD_UNCOMPARED", "refuse")
    with pytest.raises(WouldDiverge, match="TASKD_UNCOMPARED=refuse: the batch"):
        Keeper("the batch").keep(value)


def test_models_functions_and_a_scripts_objects_are_no_content_of_arguments():
    """Their state is restored otherwise; of objects in a batch the attributes are content."""
    model = torch.nn.Linear(2, 2)
    arguments = (model, print, Data(1), torch.optim.SGD(model.parameters(), 0.1)), {"n": 1}
    before = content.look(arguments, ARGUMENTS)
    assert before.unknown == "" and before.tensors == []
    arguments[0][2].x = 2
    assert content.look(arguments, ARGUMENTS).print == before.print
    assert fingerprint(Data(1)) != fingerprint(Data(2))


HOLDERS = [
    ({"x": 1, "y": 2}, lambda h: (h.pop("x"), h.update(z=3))),
    (Bag(x=1), lambda h: h.update(x=torch.ones(2))),
    ([1, [2]], lambda h: (h.append(3), h[1].clear())),
    (collections.deque([1, 2]), lambda h: h.popleft()),
    ({1, 2}, lambda h: h.add(3)),
    (Data([1]), lambda h: (setattr(h, "x", 0), setattr(h, "y", 0))),
    (Slotted(1), lambda h: setattr(h, "x", 2)),
    (bytearray(b"ab"), lambda h: h.append(1)),
    ([torch.zeros(2)], lambda h: h.__setitem__(0, h[0] * 1)),
]


@pytest.mark.parametrize(("holder", "change"), HOLDERS)
def test_what_a_step_does_to_containers_and_objects_is_undone(holder, change):
    before = fingerprint(holder)
    made = kept.Kept(holder, True, BATCHES)
    change(holder)
    assert made.again("the batch") is holder
    assert fingerprint(holder) == before


def test_a_habit_that_begins_late_is_seen():
    """From the first batch on that a step has written to, batches are copied."""
    keeper = Keeper("the batch")
    for number in range(10):
        value = {"x": torch.zeros(3)}
        made = keeper.keep(value)
        if number >= EARLY + 2:
            value["x"] += 1
        if number == EARLY + 2:
            with pytest.raises(RuntimeError, match="was changed in place"):
                made.again("the batch")
        else:
            assert made.again("the batch")["x"].sum() == 0


class Forbids(dict):
    def update(self, *_):
        raise Exception("not allowed")


class Shadowed:
    def __init__(self):
        self.__dict__.update(x=1, y=[1])

    x = property(lambda self: 0)


class Counted:
    def __init__(self):
        self.rows = [1, 2]

    @functools.cached_property
    def n(self):
        return len(self.rows)


def test_what_has_ways_of_its_own_to_change():
    for holder, change in (
        (Forbids(a=1), lambda h: dict.clear(h)),
        (Shadowed(), lambda h: h.__dict__.update(x=2)),
        (collections.OrderedDict(a=1, b=2), lambda h: h.move_to_end("a")),
        ([torch.zeros(1).expand(4), torch.zeros(4)], lambda h: h[1].add_(1)),
    ):
        before = fingerprint(holder)
        made = kept.Kept(holder, True, BATCHES)
        change(holder)
        assert made.again("the batch") is holder and fingerprint(holder) == before
    made = kept.Kept(counted := Counted(), True, BATCHES)
    assert counted.n == 2 and not made.changed()


class Library(collections.abc.MutableMapping):
    """Such as a TensorDict: what it holds is reached by its own methods alone."""

    def __init__(self, **held):
        self._held = tuple(held.items())

    def __getitem__(self, key):
        return dict(self._held)[key]

    def __setitem__(self, key, value):
        self._held = tuple({**dict(self._held), key: value}.items())

    def __delitem__(self, key):
        self._held = tuple((k, v) for k, v in self._held if k != key)

    def __iter__(self):
        return iter(dict(self._held))

    def __len__(self):
        return len(self._held)


def test_a_mapping_of_a_library_gets_its_keys_back():
    batch = Library(x=torch.zeros(2), y=torch.ones(2))
    x = batch["x"]
    made = kept.Kept(batch, True, BATCHES)
    batch["z"], batch["x"] = x + 1, x + 2
    del batch["y"]
    x += 5
    again = made.again("the batch")
    assert again is batch and sorted(batch) == ["x", "y"]
    assert batch["x"] is x and x.equal(torch.zeros(2)) and batch["y"].equal(torch.ones(2))


def test_what_cannot_be_put_back_is_not_given_back():
    reshaped = torch.zeros(3)
    made = kept.Kept(reshaped, True, BATCHES)
    reshaped.unsqueeze_(0)
    with pytest.raises(RuntimeError, match="was changed in place"):
        made.again("the batch")


class Bare(torch.Tensor):
    """Has no memory."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (4,))

    @classmethod
    def __torch_dispatch__(cls, *_, **__):
        raise NotImplementedError


def test_what_compiled_libraries_refuse_to_show_is_named():
    freed = torch.zeros(4)
    freed.untyped_storage().resize_(0)
    for value in (Bare(), freed, torch.zeros(4).to_mkldnn()):
        for copied in (False, True):
            assert kept.Kept([value], copied, BATCHES).unknown.startswith("[0] is a ")
    quantized = torch.quantize_per_channel(
        torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
    )
    assert kept.Kept(quantized, True, BATCHES).unknown == ""
    assert fingerprint(10**5000) != fingerprint(10**5000 + 1)


def test_nothing_that_differs_in_each_process_counts():
    class Zone(datetime.tzinfo):
        def utcoffset(self, _):
            return datetime.timedelta(0)

    class Marked(enum.Enum):
        A = object()

    def made():
        return [datetime.datetime(2026, 1, 1, tzinfo=Zone()), Marked.A, weakref.ref(Zone)]

    assert fingerprint(made()) == fingerprint(made())
    for other in ((1.0, {"host": "b"}, [1]), (2.0, {}, [1, 2]), (None,)):
        value = torch.ones(2), *other, torch.nn.Parameter(torch.zeros(2)), b"run-1"
        seen = content.look(value, ARGUMENTS)
        assert seen.print == content.look((torch.ones(2),), ARGUMENTS).print
        assert len(seen.tensors) == 1


def test_of_what_is_large_a_part_is_read():
    """In a bounded time, and without a copy of it."""
    for value in (
        torch.zeros(1).expand(1 << 40),
        torch.zeros(64, 3, 64, 64).to(memory_format=torch.channels_last),
        torch.zeros(4000, 4000)[:, ::2],
        numpy.zeros((3000, 3000)).T,
        "x" * (10 << 20),
        dict.fromkeys(range(200_000), 0),
        set(range(200_000)),
    ):
        assert content.look(value).unknown == ""


def test_a_batch_of_too_many_values_is_named():
    value = [[i] for i in range(200_000)]
    assert content.look(value).unknown == " has more than 20,000 values"


def test_a_tensor_of_inference_mode():
    with torch.inference_mode():
        value = torch.zeros(3)
    made = kept.Kept(value, True, BATCHES)
    with torch.inference_mode():
        value += 1
    assert made.again("the batch").sum() == 0
