"""Whatever a text is, it gives a value of its parameter's type, or BadSetting, which says what to
do."""

from __future__ import annotations

from enum import Enum

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from taskd import settings as parameters
from taskd.core.job import ladder
from taskd.settings import BadSetting, ProcessRecovery
from taskd.settings import kinds as k

WORDS = (
    "on", "off", "ON", "1", "0", "2", "-1", "grace", "hotSwitch", "{", "}", ":", ",", "ARF",
    "UCE:1", "nan", "inf", "1e3", "[", "]",
)  # fmt: skip
TEXT = st.text(max_size=20) | st.lists(
    st.sampled_from((*WORDS, *ladder.STRATEGIES, " ", "9601", "::1")), max_size=6
).map("".join)
ANY = {p.name: p for p in parameters.PARAMETERS.values()}
# one of each kind
KINDS = {(p.kind.allowed, p.secret): p.name for p in ANY.values()}.values()


def fits(kind: str, value: object) -> bool:
    """Whether a value is one of those that the parameter's own words allow."""
    if isinstance(value, Enum) and ", or one of " in kind:
        return value.value in kind.rpartition(", or one of ")[2].split(", ")
    if kind.startswith(("any text", "`auto`", "a file", "a directory", "a socket")):
        return type(value) is str and value != ""
    if kind in ("an IP address", "a host's name or address"):
        return type(value) is str and value != "" and not {" ", "/", "*"} & set(value)
    if kind.startswith(("one of on, off", "one of TRUE", "one of 1, 0")) or kind.endswith(
        "any other value is off"
    ):
        return type(value) is bool
    if kind == "one of on, pause, off":
        return type(value) is ProcessRecovery
    if kind.startswith("one of"):
        return value in kind.removeprefix("one of ").split(", ")
    if kind.startswith("PORT,"):
        return type(value) is tuple and value[0] != "" and 1 <= value[1] <= 65535
    if kind.startswith("LOWEST-HIGHEST"):
        return type(value) is range and len(value) >= 20 and 1024 <= value[0] <= value[-1] <= 65535
    if kind.startswith("at most"):
        return type(value) is tuple and 1 <= len(value) <= 4 and all(value)
    if kind.startswith("HOST"):
        return (
            type(value) is tuple
            and type(value[0]) is str
            and value[0] != ""
            and (value[1] is None or 1 <= value[1] <= 65535)
        )
    if kind.startswith("a list of numbers"):
        return value is None or (type(value) is tuple and all(type(v) is int for v in value))
    if kind.startswith("a comma-separated list"):
        return type(value) is tuple and set(value) <= set(ladder.STRATEGIES) and value != ()
    if kind.startswith("{NAME"):
        return type(value) is frozenset and value <= set(k.FAULT_TOLERANCE)
    if kind.endswith("or off") and value is None:
        return True
    lowest, highest = kind.removesuffix(", or off").split(" from ")[1].split(" to ")
    return type(value) in (int, float) and float(lowest) <= value <= float(highest)


@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=TEXT)
@example(text="\u0663")  # a digit, and no number of ours
@example(text="9" * 5000)
@example(text="1" + "0" * 400)
@example(text="on\0")
@example(text="api")
@example(text="1100-10000")
def test_any_text(name, text):
    parameter = ANY[name]
    shown = "(not shown)" if parameter.secret else text.strip()
    try:
        value = parameter.read({name: text})
    except BadSetting as error:
        assert error.name == name
        assert error.value == shown
        assert error.allowed == parameter.kind.allowed
        assert error.remedy
        assert repr(shown) in str(error)
        return
    assert (
        value == parameter.default if not text.strip() else fits(parameter.kind.allowed, value)
    ), (parameter.kind.allowed, value)


@pytest.mark.parametrize("name", ANY)
def test_defaults(name):
    parameter = ANY[name]
    assert parameter.read({}) == parameter.default == parameter.read({name: " "})
    assert (
        parameter.default is None
        or parameter.default == ()
        or fits(parameter.kind.allowed, parameter.default)
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("process-recover-enable", "on", ProcessRecovery.ON),
        ("process-recover-enable", "pause", ProcessRecovery.PAUSE),
        ("process-recover-enable", "off", ProcessRecovery.OFF),
        ("pod-rescheduling", "on", True),
        ("pod-rescheduling", "foo", False),
        ("fault-scheduling", "force", "force"),
        ("fault-retry-times", "3", 3),
        ("recover-strategy", "dump, retry", ("retry", "dump", "exit")),
        ("MS_ENABLE_TFT", "'{ ARF:1, UCE:0}'", frozenset({"ARF"})),
        ("MS_ENABLE_TFT", '{"TTP": 1}', frozenset({"TTP"})),
        ("ENABLE_RESTART_FAULT_PROCESS", "yes", False),
        ("ELASTIC_PROCESS_RECOVER_ENABLE", "1", True),
    ],
)
def test_what_the_guides_write(name, text, value):
    assert ANY[name].parse(text) == value


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("hotReset", "1", "-1, 0, 2"),
        ("fault-scheduling", "on", "grace, force, off"),
        ("fault-retry-times", "often", "a number from 0"),
        ("process-recover-enable", "true", "on, pause, off"),
        ("recover-strategy", "retry,pray", "'pray' is unknown"),
        ("subHealthyStrategy", "hotSwich", "hotSwitch"),
        ("wait-reschedule-timeout", "600", "30 to 270"),
    ],
)
def test_what_a_job_may_not_say(name, text, words):
    with pytest.raises(BadSetting, match=words):
        ANY[name].parse(text)


@settings(max_examples=200, deadline=None)
@given(given=st.dictionaries(st.sampled_from(sorted(ANY)), TEXT, max_size=8))
def test_any_environment_is_examined(given):
    found = parameters.examine(given, starting=False)  # asks no name server
    assert all(isinstance(refusal, BadSetting) for refusal in found.refused)
    assert all(any(name in notice for name in given) for notice in found.notices)
