"""A value counts as unchanged only where the same bytes would be made of it."""

from __future__ import annotations

import collections
import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.cython_api.frozen import Frozen, Groups

torch = pytest.importorskip("torch")
plain = pytest.importorskip("taskd.worker.state.plain")

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.sampled_from([0.0, -0.0, 1.0, math.nan, math.inf]),
    st.complex_numbers(max_magnitude=1),
    st.text(max_size=2),
    st.binary(max_size=2),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.sampled_from(["a", "b", "params", 1]), inner, max_size=3),
    ),
    max_leaves=8,
)


@settings(max_examples=500, deadline=None)
@given(VALUES)
def test_a_copy_is_the_same(value):
    assert Frozen(value).same(value) and Frozen(value).same(copy.deepcopy(value))


@settings(max_examples=1000, deadline=None)
@given(VALUES, VALUES)
def test_the_same_is_what_is_recorded_the_same(a, b):
    assert Frozen(a).same(b) == (plain.encode(a) == plain.encode(b))


@pytest.mark.parametrize(
    "value",
    [torch.ones(1), {1}, collections.OrderedDict(a=1), object(), {(1, 2): 3}, torch.float32],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_compared_has_always_changed(value):
    assert not Frozen(value).same(value) and not Frozen([1, value]).same([1, value])


def test_a_value_that_contains_itself():
    value: list = []
    value.append(value)
    assert not Frozen(value).same(value)


def test_a_container_that_was_changed_in_place():
    value = {"lr": [0.1, (1, 2)], "more": {"x": 1}}
    frozen = Frozen(value)
    value["more"]["x"] = 2
    assert not frozen.same(value)
    value["more"]["x"] = 1
    assert frozen.same(value)
    value["lr"].append(3)
    assert not frozen.same(value)


def test_a_key_that_does_not_count():
    """It does not in the outermost dicts, and does inside of them."""
    frozen = Frozen([{"params": [1], "lr": 1, "inner": {"params": 2}}], "params")
    assert frozen.same([{"lr": 1, "params": "other", "inner": {"params": 2}}])
    assert frozen.same([{"lr": 1, "inner": {"params": 2}}])
    assert not frozen.same([{"params": [1], "lr": 1, "inner": {"params": 3}}])


CHANGES = {
    "lr": lambda o: o.param_groups[0].update(lr=0.2),
    "type": lambda o: o.param_groups[0].update(lr=1),
    "tuple": lambda o: o.param_groups[0].update(betas=(0.9, 0.998)),
    "new key": lambda o: o.param_groups[0].update(initial_lr=0.1),
    "lost key": lambda o: o.param_groups[0].pop("eps"),
    "tensor": lambda o: o.param_groups[0].update(lr=torch.tensor(0.1)),
    "group": lambda o: o.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]}),
    "other list": lambda o: setattr(o, "param_groups", [{**o.param_groups[0], "lr": 3.0}]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_settings_of_an_optimizer(change):
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.ones(2))], lr=1.0)
    groups = Groups([optimizer])
    assert groups.same()
    optimizer.param_groups[0]["params"][0].data.zero_()
    optimizer.param_groups[0] = dict(optimizer.param_groups[0])
    assert groups.same()
    change(optimizer)
    assert not groups.same()
