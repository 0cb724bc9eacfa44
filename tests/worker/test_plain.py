"""Values of a script come back as they were, bit for bit; what cannot is refused by name; bytes of
strangers do nothing."""

from __future__ import annotations

import collections
import contextlib
import math
from collections import OrderedDict

import msgpack
import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.worker.state import plain

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 200), 1 << 200),
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(max_size=40),
    st.sampled_from(
        [
            torch.float32,
            torch.bfloat16,
            torch.device("cpu"),
            torch.Size([2, 3]),
            torch.device("cuda", 1),
        ]
    ),
    st.sampled_from([numpy.float32(1.5), numpy.int64(-3), numpy.bool_(True), numpy.float64("nan")]),
)
KEYS = st.one_of(
    st.text(max_size=5),
    st.integers(-(1 << 70), 1 << 70),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.none(),
)


def _containers(inner):
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(collections.OrderedDict),
        st.lists(inner, max_size=3).map(lambda v: collections.deque(v, maxlen=5)),
        st.sets(KEYS, max_size=3),
        st.frozensets(KEYS, max_size=3),
        st.dictionaries(st.integers(), st.integers(0, 9), max_size=3).map(collections.Counter),
    )


def same(a, b) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (
            a.dtype == b.dtype
            and a.stride() == b.stride()
            and bytes(plain.tensor_bytes(a)[1]) == bytes(plain.tensor_bytes(b)[1])
        )
    if isinstance(a, (numpy.ndarray, numpy.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple, collections.deque)):
        return (
            len(a) == len(b)
            and all(map(same, a, b))
            and getattr(a, "maxlen", 0) == getattr(b, "maxlen", 0)
        )
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, complex):
        return same(a.real, b.real) and same(a.imag, b.imag)
    return bool(a == b)


@settings(max_examples=300, deadline=None)
@given(st.recursive(SCALARS, _containers, max_leaves=20))
def test_values_come_back_as_they_were(value):
    assert same(plain.decode(plain.encode(value)), value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(24).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.tensor([], dtype=torch.float16),
        torch.tensor(7, dtype=torch.int8),
        torch.tensor([float("nan"), -0.0]),
        torch.tensor([1 + 2j, 3j]).conj(),
        torch.ones(4, dtype=torch.bfloat16),
        torch.zeros(2, 0, 3),
        torch.arange(4.0).expand(3, 4)[:, ::2].contiguous(),
    ],
)
def test_tensors_keep_type_strides_and_bits(tensor):
    assert same(plain.decode(plain.encode({"t": tensor}))["t"], tensor)


def test_a_state_dict_keeps_the_notes_that_it_is_loaded_by():
    """torch and tensordict keep versions and batch sizes in an attribute."""
    noted = OrderedDict(x=torch.ones(2))
    noted._metadata = OrderedDict({"": {"batch_size": torch.Size([2])}})
    noted.held = object()  # which no record has
    found = plain.decode(plain.encode({"storage": noted}))["storage"]
    assert type(found) is OrderedDict and torch.equal(found["x"], noted["x"])
    assert vars(found) == {"_metadata": noted._metadata}


def test_a_parameter_stays_one():
    found = plain.decode(plain.encode(torch.nn.Parameter(torch.ones(2), requires_grad=False)))
    assert type(found) is torch.nn.Parameter and not found.requires_grad


class Foreign:
    pass


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {"b": Foreign()}]}, "Foreign at ['a'][1]['b']"),
        ([lambda: 1], "function at [0]"),
        ({"x": collections.namedtuple("Pair", "a")(1)}, "Pair at ['x']"),
        ({"x": numpy.array([object()])}, "numpy.ndarray at ['x']"),
        ({"s": torch.eye(2).to_sparse()}, "Tensor at ['s']"),
        (Foreign(), "Foreign"),
    ],
)
def test_what_cannot_be_recorded_is_named(value, where):
    with pytest.raises(plain.Unrecordable, match=r".*") as caught:
        plain.encode(value)
    assert where in str(caught.value)
    assert plain.decode(plain.encode([1, (2,)])) == [1, (2,)], "the next value is not touched by it"


def test_a_value_inside_itself_is_refused():
    value: list = []
    value.append(value)
    with pytest.raises(plain.Unrecordable, match="too deeply"):
        plain.encode(value)


@settings(max_examples=400, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.tuples(st.integers(0, 30), st.binary(max_size=40)).map(
            lambda e: msgpack.packb(msgpack.ExtType(*e))
        ),
    )
)
def test_bytes_of_strangers_are_values_or_refused(data):
    with contextlib.suppress(plain.Unreadable):
        plain.decode(data)


@pytest.mark.parametrize(
    "parts",
    [
        ("float32", [1 << 40], [1], b"1234"),
        ("float32", [2], [1], b"1234"),
        ("float32", [2, 2], [1, 1], b"x" * 16),
        ("float32", [-1], [1], b""),
        ("__class__", [1], [1], b"1234"),
        ("float32", "ab", [1], b"1234"),
    ],
)
def test_a_tensor_whose_sizes_do_not_fit_is_refused(parts):
    with pytest.raises(plain.Unreadable):
        plain.tensor_of(*parts)
