"""What a device has by all that was told of it, on a clock of our own; and that the next manager
judges by the same."""

from __future__ import annotations

import dataclasses
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.mindcluster.faults import codes, customization
from taskd.mindcluster.faults.configuration import Configuration, load
from taskd.mindcluster.faults.device import (
    KINDS,
    MOST_CODES,
    Damaged,
    Device,
    Known,
    Separation,
    TooMany,
    read,
)
from taskd.mindcluster.levels import TABLE, Level, stronger

TABLES = {
    "80000001": Level.NOT_HANDLE,
    "80000002": Level.SUB_HEALTH,
    "80000003": Level.RESTART_REQUEST,
    "80000004": Level.RESTART_BUSINESS,
    "80000005": Level.FREE_RESTART,
    "80000006": Level.RESTART,
    "80000007": Level.PRE_SEPARATE,
    "80000008": Level.SEPARATE,
}


def device(frequency=None, duration=None, known=None, now=0.0, **grace):
    table = codes.Codes({code: (level, "a list") for code, level in TABLES.items()})
    rules = customization.Customization(
        customization.Grace(**grace), frequency or {}, duration or {}
    )
    return Device("d", Configuration(table, rules), known, now)


def often(times=2, level=Level.MANUALLY_SEPARATE, release=None):
    return customization.Frequency(100.0, times, level, release, "FaultFrequency[0]")


@pytest.mark.parametrize(("code", "level"), TABLES.items())
def test_a_code_gives_its_level_until_it_is_away(code, level):
    found = device()
    assert found.report(code, "occur", 1.0).reason.level is level
    assert found.judge(2.0).level is level
    assert bool(found.judge(2.0).unusable) == (not TABLE[level].usable)
    assert found.report(code, "recover", 3.0) is None
    assert found.judge(3.0).level is Level.NORMAL


@pytest.mark.parametrize("code", ["80000007", "80000008"])
def test_a_device_that_takes_no_process_is_not_well_again_after_a_moment(code):
    found = device()
    arisen = found.report(code, "once", 1.0)
    assert arisen.reason.level is TABLES[code] and arisen.now.unusable
    assert found.judge(1e6).unusable
    found.report(code, "recover", 1e6)
    assert not found.judge(1e6).unusable


@pytest.mark.parametrize(
    "code", ["80000001", "80000002", "80000003", "80000004", "80000005", "80000006"]
)
def test_what_was_there_for_a_moment_is_told_each_time(code):
    found = device()
    for at in (1.0, 2.0, 2.0):
        arisen = found.report(code, "once", at)
        assert arisen.reason.level is TABLES[code] and arisen.now.level is Level.NORMAL


def test_what_is_said_again_is_not_new():
    found = device()
    assert found.report("80000006", "occur", 1.0) is not None
    assert found.report("80000006", "occur", 2.0) is None


def test_precedence_is_of_the_device_and_strength_of_what_is_new():
    found = device()
    assert found.report("80000007", "occur", 1.0).reason.level is Level.PRE_SEPARATE
    arisen = found.report("80000006", "occur", 2.0)
    assert arisen.reason.level is Level.RESTART and arisen.now.level is Level.PRE_SEPARATE
    assert arisen.now.unusable


def test_an_unknown_critical_code_is_not_hidden_by_a_harmless_known_one():
    found = device()
    found.report("80000001", "occur", 1.0)
    assert found.report("DEAD", "occur", 2.0, "critical").reason.level is Level.SEPARATE
    assert found.report("BEEF", "occur", 3.0, "minor").reason.level is Level.NOT_HANDLE


def test_what_comes_too_often_separates_until_it_is_released():
    found = device({"80000004": often()})
    found.report("80000004", "once", 1.0)
    arisen = found.report("80000004", "once", 2.0)
    assert arisen.reason.level is Level.MANUALLY_SEPARATE and found.known.separated
    assert found.judge(1e9).level is Level.MANUALLY_SEPARATE
    found.release()
    assert found.judge(1e9).level is Level.NORMAL
    assert found.report("80000004", "once", 3.0).reason.level is Level.RESTART_BUSINESS, (
        "it is counted anew"
    )


@pytest.mark.parametrize("code", ["80000004", "80000008"])
def test_release_of_a_device_whose_code_is_still_there_or_that_is_not_separated_by_hand(code):
    found = device({"80000004": often(1)})
    found.report(code, "occur", 1.0)
    assert found.judge(1.0).unusable
    found.release()
    assert not found.judge(1e6).unusable and found.advance(1e6) is None and found.plain() is None
    assert found.report("80000004", "occur", 1e6).reason.level is Level.MANUALLY_SEPARATE


def test_a_release_time_window():
    found = device({"80000004": often(release=50.0)})
    found.report("80000004", "once", 1.0)
    found.report("80000004", "once", 2.0)
    assert found.known.separated
    assert found.due > 101.0  # fewer than two within 100 s, and away for 50 s
    found.advance(found.due)
    assert not found.known.separated and found.judge(200.0).level is Level.NORMAL


def test_what_is_there_for_too_long():
    found = device(duration={"80000001": customization.Duration(20.0, 60.0)})
    assert found.report("80000001", "occur", 0.0).reason.level is Level.NOT_HANDLE
    assert found.advance(20.0) is None
    arisen = found.advance(found.due)
    assert arisen.reason.level is Level.PRE_SEPARATE and arisen.now.unusable
    found.report("80000001", "recover", 30.0)
    assert found.judge(90.0).level is Level.PRE_SEPARATE
    found.advance(found.due)
    assert found.judge(91.0).level is Level.NORMAL


def test_codes_that_are_timed_are_counted_when_they_were_there_for_too_long():
    found = device({"80000001": often()}, {"80000001": customization.Duration(20.0, 1.0)})
    for start in (0.0, 10.0, 20.0):  # short ones
        found.report("80000001", "occur", start)
        found.report("80000001", "recover", start + 5.0)
    assert not found.known.separated
    for start in (30.0, 60.0):
        found.report("80000001", "occur", start)
        found.report("80000001", "recover", start + 21.0)
    assert found.known.separated


def test_what_does_not_go_away_within_the_times_of_grace_tolerance():
    found = device(heals=15.0, reset=150.0)
    found.report("80000004", "occur", 0.0)
    assert found.advance(14.9) is None
    assert found.advance(15.0).reason.level is Level.RESTART
    assert found.due == 165.0
    assert found.advance(165.0).reason.level is Level.SEPARATE
    assert found.advance(1e6) is None and found.due is None
    found.report("80000004", "recover", 1e6)
    assert found.judge(1e6).level is Level.NORMAL


def test_other_files_change_nothing_about_codes_that_they_do_not_touch():
    found = device({"80000004": often(3)})
    found.report("80000004", "once", 1.0)
    found.report("80000004", "once", 2.0)
    found.report("80000006", "occur", 2.0)
    found.reconfigure(dataclasses.replace(found.rules), 3.0)
    assert found.advance(3.0) is None
    assert found.judge(3.0).level is Level.RESTART
    found.report("80000004", "once", 4.0)
    assert found.known.separated, "what was counted before is counted still"


def test_other_files_may_count_otherwise():
    found = device({"80000004": often(3)})
    found.report("80000004", "once", 1.0)
    rules = dataclasses.replace(found.rules.customization, frequency={"80000004": often(2)})
    found.reconfigure(dataclasses.replace(found.rules, customization=rules), 2.0)
    assert found.report("80000004", "once", 3.0).reason.level is Level.MANUALLY_SEPARATE
    found.release()
    rules = dataclasses.replace(rules, frequency={})
    found.reconfigure(dataclasses.replace(found.rules, customization=rules), 4.0)
    for at in (5.0, 6.0, 7.0):
        assert found.report("80000004", "once", at).reason.level is Level.RESTART_BUSINESS


def test_a_device_that_was_separated_before_this_manager_whose_files_do_not_count_the_code():
    found = device(known=Known(separated=Separation("80000004", "it has come 2 times", 0.0)))
    assert found.judge(1e6).unusable == "ManuallySeparateNPU: it has come 2 times"
    assert found.due is None


def test_the_number_of_codes_of_a_device_is_bounded():
    found = device()
    for code in range(MOST_CODES):
        found.report(str(100 + code), "occur", 1.0, "minor")
    with pytest.raises(TooMany):
        found.report("9999", "occur", 2.0)
    found.report("100", "recover", 3.0)
    assert found.report("9999", "occur", 4.0) is not None


TOLD = st.tuples(
    st.sampled_from([*TABLES, "80000009", "8000000A"]),
    st.sampled_from(KINDS),
    st.floats(0, 40),
    st.booleans(),
)
STORY = st.lists(TOLD, max_size=40)


@given(STORY, st.booleans(), st.booleans())
def test_whatever_is_told_the_level_is_that_of_a_code_that_is_there_or_of_a_rule(
    story, counted, timed
):
    """And never lower than that of any code that is there; what has arisen is never weaker than the
    code that was told."""
    found = device(
        {"80000004": often(), "80000001": often(3, Level.RESTART, 30.0)} if counted else {},
        {"80000001": customization.Duration()} if timed else {},
    )
    there: set[str] = set()
    now = 0.0
    for code, kind, gap, look in story:
        now += gap
        if look:
            found.advance(now)
        new = kind != "recover" and code not in there
        arisen = found.report(code, kind, now)
        rated = found.rules.codes.rate(code).level
        if kind == "occur" or (kind == "once" and not TABLE[rated].usable):
            there.add(code)
        elif kind == "recover":
            there.discard(code)
        if new:
            assert stronger(arisen.reason.level, rated) is arisen.reason.level
        levels = [found.rules.codes.rate(each).level for each in there]
        judged = found.judge(now)
        assert judged.level >= max(levels, default=Level.NORMAL)
        if not counted and not timed and not any(level in (4, 5, 6) for level in levels):
            assert judged.level == max(levels, default=Level.NORMAL)
        assert bool(judged.unusable) == (judged.level >= Level.PRE_SEPARATE)


@pytest.mark.parametrize(
    ("later", "level"), [(86_400.0, Level.MANUALLY_SEPARATE), (86_401.0, Level.RESTART_BUSINESS)]
)
def test_the_vendors_own_rules(later, level):
    found = Device("d", load())
    assert found.report("80E01801", "once", 0.0).reason.level is Level.RESTART_BUSINESS
    assert found.report("80E01801", "once", later).reason.level is level


def test_a_reset_is_over_when_its_code_is():
    """That a code came too often costs the process, but the device is not being reset for that."""
    often = {"80000005": customization.Frequency(86_400, 2, Level.RESTART)}
    watched = device(frequency=often)
    for at in (0.0, 10.0):
        watched.report("80000005", "occur", at)
        assert watched.judge(at + 1.0).resetting
        watched.report("80000005", "recover", at + 5.0)
        assert not watched.judge(at + 5.0).resetting
    assert watched.judge(20.0).level is Level.RESTART


# -- the next manager ------------------------------------------------------------------------------

DURATION = customization.Duration(10.0, 20.0, Level.PRE_SEPARATE, "FaultDuration[0]")
REPORTS = st.tuples(
    st.sampled_from(sorted(TABLES)), st.sampled_from(KINDS), st.integers(0, 40), st.booleans()
)


def counted(**more):
    frequency = {
        "80000003": often(2, Level.RESTART, 30.0),
        "80000004": often(3, Level.PRE_SEPARATE, 50.0),
        "80000005": often(2, Level.MANUALLY_SEPARATE, None),
        "80000007": often(2, Level.MANUALLY_SEPARATE, 70.0),
    }
    return device(frequency, {"80000005": DURATION, "80000006": DURATION}, **more)


@given(st.lists(REPORTS, max_size=25))
@settings(deadline=None)
def test_a_manager_that_takes_over_at_any_moment_judges_like_one_that_stayed(reports):
    stayed, other, at = counted(), counted(), 10**6
    for code, kind, after, taken_over in reports:
        at += after
        stayed.report(code, kind, at)
        other.report(code, kind, at)
        if taken_over:
            raw = json.loads(json.dumps(other.plain()))
            other = counted(known=read(raw), now=at)
        assert stayed.judge(at) == other.judge(at)
    # and all that the passing of time alone changes
    for later in range(at, at + 130, 2):
        stayed.advance(later)
        other.advance(later)
        assert stayed.judge(later) == other.judge(later)


@pytest.mark.parametrize(
    "raw",
    [
        None,
        3,
        {"codes": {"80e01801": {}}},
        {"codes": {"80E01801": {"since": 10**400}}},
        {"codes": {"80E01801": {"since": float("nan")}}},
        {"codes": {"80E01801": {"count": {"occurred": [1.0] * 101}}}},
        {"codes": {f"{n:08X}": {} for n in range(129)}},
        {"separated": {"code": "80E01801", "text": "", "since": None}},
        {"info": {"codes": {"x": [1, False]}}},
        {"info": {"codes": {"80E01801": [-1, False]}}},
        {"more": 1},
    ],
)
def test_what_is_damaged_is_refused_whole(raw):
    with pytest.raises(Damaged):
        read(raw)
