"""Where device-info is, and which chip each rank has."""

from __future__ import annotations

import pytest

from taskd import settings
from taskd.settings import Api, BadSetting, Contradiction


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        ("/etc/device-info", "/etc/device-info"),
        ("./api", "./api"),
        ("api", Api.READ),
        ("api-write", Api.WRITE),
    ],
)
def test_where_it_is(text, found):
    assert settings.device_info({"TASKD_DEVICE_INFO": text}) == found


@pytest.mark.parametrize("text", ["API", "api-wirte", "on"])
def test_a_word_that_is_none(text):
    with pytest.raises(BadSetting, match="a directory"):
        settings.device_info({"TASKD_DEVICE_INFO": text})


def test_the_api_must_be_used():
    given = {"TASKD_DEVICE_INFO": "api-write"}
    with pytest.raises(Contradiction, match="TASKD_KUBERNETES to on"):
        settings.check(given)
    settings.check({**given, "TASKD_KUBERNETES": "on"})
    settings.check({"TASKD_DEVICE_INFO": "/etc/device-info"})


@pytest.mark.parametrize(
    ("container", "ranks", "expected"),
    [
        ("", "", (0, 1, 2)),
        ("4-7", "", (4, 5, 6)),
        ("4,6,5,7", "", (4, 6, 5)),
        ("0-1,6-7", "", (0, 1, 6)),
        ("Ascend910-4, Ascend910-7", "", (4, 7)),
        ("", "5,4,3", (5, 4, 3)),
        ("4-7", "3,0", (7, 4)),
    ],
)
def test_chips(container, ranks, expected):
    environ = {"ASCEND_VISIBLE_DEVICES": container, "ASCEND_RT_VISIBLE_DEVICES": ranks}
    assert settings.chips(environ, 3) == expected


@pytest.mark.parametrize(
    ("container", "ranks"),
    [
        ("all", ""),
        ("7-4", ""),
        ("0,0", ""),
        ("0-9999", ""),
        ("0-99999", ""),
        ("0,,1", ""),
        ("", "x"),
        ("4-5", "2"),
        ("²", ""),
    ],
)
def test_chips_that_are_not_known(container, ranks):
    """It is not guessed whose a code is; and a job that does not need them starts all the same."""
    environ = {"ASCEND_VISIBLE_DEVICES": container, "ASCEND_RT_VISIBLE_DEVICES": ranks}
    with pytest.raises(BadSetting, match="VISIBLE_DEVICES"):
        settings.chips(environ, 3)
    settings.check(environ)
