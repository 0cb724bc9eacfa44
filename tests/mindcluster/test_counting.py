"""Frequencies and durations against a plain reference that looks at everything that has happened
each time it is asked."""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from taskd.mindcluster.faults.counting import Count, Span
from taskd.mindcluster.faults.customization import Duration, Frequency
from taskd.mindcluster.levels import Level

# whole seconds, so that limits are met exactly too
GAPS = st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["occur", "recover"])), max_size=30)


def events(gaps):
    now, out = 0.0, []
    for gap, kind in gaps:
        now += gap
        out.append((now, kind))
    return out


def often(rule, happened, now):
    """Whether the level of `rule` holds at `now`, by everything that has happened until then; of
    what happens at one moment, one after the other."""
    holds, recovered, occurred = False, None, []
    for moment, kind in (event for event in happened if event[0] <= now):
        holds = holds and not given_back(rule, occurred, recovered, moment)
        if kind == "occur":
            occurred.append(moment)
            recovered = None
            inside = [t for t in occurred if t >= moment - rule.window]
            holds = holds or len(inside) >= rule.times
        elif recovered is None:
            recovered = moment
    return holds and not given_back(rule, occurred, recovered, now)


def given_back(rule, occurred, recovered, now):
    if recovered is None or (rule.release is None and rule.level is Level.MANUALLY_SEPARATE):
        return False
    inside = [t for t in occurred if t + rule.window >= now]
    away = rule.release is None or now > recovered + rule.release
    return len(inside) < rule.times and away


RULES = st.builds(
    Frequency,
    window=st.integers(1, 60).map(float),
    times=st.integers(1, 5),
    level=st.sampled_from([Level.RESTART, Level.MANUALLY_SEPARATE]),
    release=st.one_of(st.none(), st.integers(1, 60).map(float)),
)


@given(RULES, GAPS, st.integers(0, 120))
@example(Frequency(1.0, 1, Level.RESTART, None), [(0, "occur"), (2, "recover")], 0)
@example(
    Frequency(1.0, 2, Level.RESTART, None),
    [(0, "occur"), (0, "occur"), (2, "recover"), (0, "occur")],
    0,
)
def test_how_often(rule, gaps, later):
    count, happened = Count(), events(gaps)
    for at, kind in happened:
        getattr(count, kind)(rule, at)
    now = (happened[-1][0] if happened else 0.0) + later
    count.advance(rule, now)
    assert count.often == often(rule, happened, now)


@given(RULES, GAPS)
def test_the_level_is_taken_back_when_it_is_due_and_not_before(rule, gaps):
    count, happened = Count(), events(gaps)
    for at, kind in happened:
        getattr(count, kind)(rule, at)
    due = count.due(rule)
    if due is None:
        count.advance(rule, 1e9)
        assert count.often == often(rule, happened, 1e9)
        return
    assert count.often
    if due > happened[-1][0]:
        assert often(rule, happened, math.nextafter(due, 0.0))
    assert not often(rule, happened, max(due, happened[-1][0] + 1e-9))
    count.advance(rule, due)
    assert not count.often


def long(rule, happened, now):
    """Merge what is said twice, then walk along the spans in which it was there."""
    merged = []
    for at, kind in happened:
        if at <= now and (not merged or merged[-1][1] != kind):
            merged.append((at, kind))
    if merged and merged[0][1] == "recover":
        merged = merged[1:]
    holds, start, away = False, None, None
    for at, kind in [*merged, (now, "now")]:
        if holds:
            if away is not None and at > away + rule.recover:
                holds, start, away = False, None, None
        elif start is not None and at > start + rule.timeout:
            holds, away = True, None
        if kind == "occur":
            away = None
            start = at if not holds else start
        elif kind == "recover":
            if holds:
                away = at
            else:
                start = None
    return holds


@given(
    st.builds(
        Duration,
        timeout=st.integers(0, 40).map(float),
        recover=st.integers(0, 40).map(float),
        level=st.just(Level.PRE_SEPARATE),
    ),
    GAPS,
    st.integers(0, 120),
)
def test_how_long(rule, gaps, later):
    span, happened = Span(), events(gaps)
    for at, kind in happened:
        getattr(span, kind)(rule, at)
    now = (happened[-1][0] if happened else 0.0) + later
    span.advance(rule, now)
    assert span.long == long(rule, happened, now)
