"""What a device has by all that was told of it, on a clock of our own."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.mindcluster.faults import Configuration, Devices, codes, customization, load
from taskd.mindcluster.faults.evaluation import KINDS, MOST_CODES, TooMany
from taskd.mindcluster.faults.judgement import Separation
from taskd.mindcluster.levels import TABLE, Level, stronger

TABLES = {
    1: Level.NOT_HANDLE,
    2: Level.SUB_HEALTH,
    3: Level.RESTART_REQUEST,
    4: Level.RESTART_BUSINESS,
    5: Level.FREE_RESTART,
    6: Level.RESTART,
    7: Level.PRE_SEPARATE,
    8: Level.SEPARATE,
}


def devices(frequency=None, duration=None, **grace):
    table = codes.Codes({code: (level, "a list") for code, level in TABLES.items()})
    rules = customization.Customization(
        customization.Grace(**grace), frequency or {}, duration or {}
    )
    return Devices(Configuration(table, rules))


def often(times=2, level=Level.MANUALLY_SEPARATE, release=None):
    return customization.Frequency(100.0, times, level, release, "FaultFrequency[0]")


@pytest.mark.parametrize(("code", "level"), TABLES.items())
def test_a_code_gives_its_level_until_it_is_away(code, level):
    found = devices()
    assert found.report("d", code, "occur", 1.0).reason.level is level
    assert found.judge("d", 2.0).level is level
    assert bool(found.judge("d", 2.0).unusable) == (not TABLE[level].usable)
    assert found.report("d", code, "recover", 3.0) is None
    assert found.judge("d", 3.0).level is Level.NORMAL


@pytest.mark.parametrize("code", [7, 8])
def test_a_device_that_takes_no_process_is_not_well_again_after_a_moment(code):
    found = devices()
    arisen = found.report("d", code, "once", 1.0)
    assert arisen.reason.level is TABLES[code] and arisen.now.unusable
    assert found.judge("d", 1e6).unusable
    found.report("d", code, "recover", 1e6)
    assert not found.judge("d", 1e6).unusable


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6])
def test_what_was_there_for_a_moment_is_told_each_time(code):
    found = devices()
    for at in (1.0, 2.0, 2.0):
        arisen = found.report("d", code, "once", at)
        assert arisen.reason.level is TABLES[code] and arisen.now.level is Level.NORMAL


def test_what_is_said_again_is_not_new():
    found = devices()
    assert found.report("d", 6, "occur", 1.0) is not None
    assert found.report("d", 6, "occur", 2.0) is None


def test_precedence_is_of_the_device_and_strength_of_what_is_new():
    found = devices()
    assert found.report("d", 7, "occur", 1.0).reason.level is Level.PRE_SEPARATE
    arisen = found.report("d", 6, "occur", 2.0)
    assert arisen.reason.level is Level.RESTART and arisen.now.level is Level.PRE_SEPARATE
    assert arisen.now.unusable


def test_an_unknown_critical_code_is_not_hidden_by_a_harmless_known_one():
    found = devices()
    found.report("d", 1, "occur", 1.0)
    assert found.report("d", 0xDEAD, "occur", 2.0, "critical").reason.level is Level.SEPARATE
    assert found.report("d", 0xBEEF, "occur", 3.0, "minor").reason.level is Level.NOT_HANDLE


def test_what_comes_too_often_separates_until_it_is_released():
    found = devices({4: often()})
    found.report("d", 4, "once", 1.0)
    arisen = found.report("d", 4, "once", 2.0)
    assert arisen.reason.level is Level.MANUALLY_SEPARATE and "d" in found.separated
    assert found.judge("d", 1e9).level is Level.MANUALLY_SEPARATE
    assert found.release("d") and not found.release("d")
    assert found.judge("d", 1e9).level is Level.NORMAL
    assert found.report("d", 4, "once", 3.0).reason.level is Level.RESTART_BUSINESS, (
        "it is counted anew"
    )


def test_release_of_a_device_whose_code_is_still_there_or_that_is_not_separated_by_hand():
    found = devices({4: often(1)})
    found.report("d", 4, "occur", 1.0)
    found.report("e", 8, "occur", 1.0)
    assert found.unusable(1.0) == ["d", "e"]
    assert found.release("d") and found.release("e") and not found.release("f")
    assert found.unusable(1e6) == [] and found.look(1e6) == []
    assert found.report("d", 4, "occur", 1e6).reason.level is Level.MANUALLY_SEPARATE


def test_a_release_time_window():
    found = devices({4: often(release=50.0)})
    found.report("d", 4, "once", 1.0)
    found.report("d", 4, "once", 2.0)
    assert "d" in found.separated
    assert found.due > 101.0  # fewer than two within 100 s, and away for 50 s
    found.look(found.due)
    assert not found.separated and found.judge("d", 200.0).level is Level.NORMAL


def test_what_is_there_for_too_long():
    found = devices(duration={1: customization.Duration(20.0, 60.0)})
    assert found.report("d", 1, "occur", 0.0).reason.level is Level.NOT_HANDLE
    assert found.look(20.0) == []
    (arisen,) = found.look(found.due)
    assert arisen.reason.level is Level.PRE_SEPARATE and arisen.now.unusable
    found.report("d", 1, "recover", 30.0)
    assert found.judge("d", 90.0).level is Level.PRE_SEPARATE
    found.look(found.due)
    assert found.judge("d", 91.0).level is Level.NORMAL


def test_codes_that_are_timed_are_counted_when_they_were_there_for_too_long():
    found = devices({1: often()}, {1: customization.Duration(20.0, 1.0)})
    for start in (0.0, 10.0, 20.0):  # short ones
        found.report("d", 1, "occur", start)
        found.report("d", 1, "recover", start + 5.0)
    assert not found.separated
    for start in (30.0, 60.0):
        found.report("d", 1, "occur", start)
        found.report("d", 1, "recover", start + 21.0)
    assert "d" in found.separated


def test_what_does_not_go_away_within_the_times_of_grace_tolerance():
    found = devices(heals=15.0, reset=150.0)
    found.report("d", 4, "occur", 0.0)
    assert found.look(14.9) == []
    assert [a.reason.level for a in found.look(15.0)] == [Level.RESTART]
    assert found.due == 165.0
    assert [a.reason.level for a in found.look(165.0)] == [Level.SEPARATE]
    assert found.look(1e6) == [] and found.due is None
    found.report("d", 4, "recover", 1e6)
    assert found.judge("d", 1e6).level is Level.NORMAL


def test_other_files_change_nothing_about_codes_that_they_do_not_touch():
    found = devices({4: often(3)})
    found.report("d", 4, "once", 1.0)
    found.report("d", 4, "once", 2.0)
    found.report("d", 6, "occur", 2.0)
    found.reconfigure(dataclasses.replace(found.configuration), 3.0)
    assert found.look(3.0) == []
    assert found.judge("d", 3.0).level is Level.RESTART
    found.report("d", 4, "once", 4.0)
    assert "d" in found.separated, "what was counted before is counted still"


def test_other_files_may_count_otherwise():
    found = devices({4: often(3)})
    found.report("d", 4, "once", 1.0)
    rules = dataclasses.replace(found.configuration.customization, frequency={4: often(2)})
    found.reconfigure(dataclasses.replace(found.configuration, customization=rules), 2.0)
    assert found.report("d", 4, "once", 3.0).reason.level is Level.MANUALLY_SEPARATE
    found.release("d")
    rules = dataclasses.replace(rules, frequency={})
    found.reconfigure(dataclasses.replace(found.configuration, customization=rules), 4.0)
    for at in (5.0, 6.0, 7.0):
        assert found.report("d", 4, "once", at).reason.level is Level.RESTART_BUSINESS


def test_a_device_that_was_separated_before_this_manager():
    found = devices()
    found.separated["d"] = Separation("80E01801 has come 2 times", 4)
    found.separated["x"] = Separation("81078603 has come 5 times", 1, until=10.0)
    assert found.judge("d", 0.0).unusable and found.due == 10.0
    assert found.look(10.0) == [] and list(found.separated) == ["d"]
    assert found.due is None


def test_the_number_of_codes_of_a_device_is_bounded():
    found = devices()
    for code in range(MOST_CODES):
        found.report("d", 100 + code, "occur", 1.0, "minor")
    with pytest.raises(TooMany):
        found.report("d", 9999, "occur", 2.0)
    found.report("d", 100, "recover", 3.0)
    assert found.report("d", 9999, "occur", 4.0) is not None


TOLD = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from([*TABLES, 9, 10]),
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
    found = devices(
        {4: often(), 1: often(3, Level.RESTART, 30.0)} if counted else {},
        {1: customization.Duration()} if timed else {},
    )
    there: dict[tuple[str, int], bool] = {}
    now = 0.0
    for device, code, kind, gap, look in story:
        now += gap
        if look:
            found.look(now)
        new = kind != "recover" and not there.get((device, code))
        arisen = found.report(device, code, kind, now)
        rated = found.configuration.codes.rate(code).level
        stays = kind == "occur" or (kind == "once" and not TABLE[rated].usable)
        there[device, code] = (there.get((device, code), False) or stays) and kind != "recover"
        if new:
            assert (
                arisen is not None and stronger(arisen.reason.level, rated) is arisen.reason.level
            )
        for name in "ab":
            levels = [
                found.configuration.codes.rate(c).level
                for (d, c), on in there.items()
                if on and d == name
            ]
            judged = found.judge(name, now)
            assert judged.level >= max(levels, default=Level.NORMAL)
            if not counted and not timed and not any(level in (4, 5, 6) for level in levels):
                assert judged.level == max(levels, default=Level.NORMAL)
            assert bool(judged.unusable) == (judged.level >= Level.PRE_SEPARATE)


def test_the_vendors_own_rules_from_the_first_occurrence_to_the_release():
    found = Devices(load())
    assert found.report("d", 0x80E01801, "once", 0.0).reason.level is Level.RESTART_BUSINESS
    assert found.report("d", 0x80E01801, "once", 86_400.0).reason.level is Level.MANUALLY_SEPARATE
    assert found.report("e", 0x80E01801, "once", 0.0).reason.level is Level.RESTART_BUSINESS
    assert found.report("e", 0x80E01801, "once", 86_401.0).reason.level is Level.RESTART_BUSINESS


def test_a_reset_is_over_when_its_code_is():
    """That a code came too often costs the process, but the device is not being reset for that."""
    often = {5: customization.Frequency(86_400, 2, Level.RESTART)}
    watched = devices(frequency=often)
    for at in (0.0, 10.0):
        watched.report("a/0", 5, "occur", at)
        assert watched.judge("a/0", at + 1.0).resetting
        watched.report("a/0", 5, "recover", at + 5.0)
        assert not watched.judge("a/0", at + 5.0).resetting
    assert watched.judge("a/0", 20.0).level is Level.RESTART
