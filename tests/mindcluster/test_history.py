"""What one manager was told of a device is what the next one judges by."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.mindcluster.faults import customization
from taskd.mindcluster.faults.evaluation import KINDS
from taskd.mindcluster.faults.history import Damaged
from taskd.mindcluster.levels import Level

from .test_evaluation import TABLES, devices, often

DURATION = customization.Duration(10.0, 20.0, Level.PRE_SEPARATE, "FaultDuration[0]")
REPORTS = st.tuples(
    st.sampled_from(sorted(TABLES)), st.sampled_from(KINDS), st.integers(0, 40), st.booleans()
)


def rules():
    frequency = {
        3: often(2, Level.RESTART, 30.0),
        4: often(3, Level.PRE_SEPARATE, 50.0),
        5: often(2, Level.MANUALLY_SEPARATE, None),
    }
    return devices(frequency, {5: DURATION, 6: DURATION})


@given(st.lists(REPORTS, max_size=25), st.integers(-(10**6), 10**6))
def test_a_manager_that_takes_over_at_any_moment_judges_like_one_that_stayed(reports, clock):
    """`clock`: how far each next manager's clock is from the last one's."""
    stayed, other, at, shift = rules(), rules(), 10**6, 0
    for code, kind, after, taken_over in reports:
        at += after
        stayed.report("d", code, kind, at)
        other.report("d", code, kind, at + shift)
        if taken_over:
            raw = json.loads(json.dumps(other.plain("d", -shift)))
            separated, shift = other.separated, shift + clock
            other = rules()
            other.separated |= separated  # it has a file of its own
            other.recall("d", raw, shift, at + shift)
        assert stayed.judge("d", at) == other.judge("d", at + shift)
    # and all that the passing of time alone changes
    for later in range(at, at + 130):
        stayed.look(later)
        other.look(later + shift)
        assert stayed.judge("d", later) == other.judge("d", later + shift)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        [],
        {"x": {}},
        {"3": {"severity": 1, "since": None, "count": None, "span": None}},
        {"3": {"severity": "", "since": "now", "count": None, "span": None}},
        {"3": {"severity": "", "since": 10**400, "count": None, "span": None}},
        {"3": {"severity": "", "since": float("nan"), "count": None, "span": None}},
        {"3": {"severity": "", "since": float("inf"), "count": None, "span": None}},
        {"3": {"severity": "", "since": None, "count": [[1.0] * 101, None, True], "span": None}},
        {"3": {"severity": "", "since": None, "count": [["a"], None, True], "span": None}},
        {"3": {"severity": "", "since": None, "count": None, "span": [1, 2, 3]}},
        {str(n): {"severity": "", "since": None, "count": None, "span": None} for n in range(129)},
    ],
)
def test_what_is_damaged_is_refused_whole(raw):
    found = rules()
    with pytest.raises(Damaged):
        found.recall("d", raw, 0.0, 0.0)
    assert found.plain("d", 0.0) is None
