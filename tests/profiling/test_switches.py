"""The documented file profilingSwitch."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.messages.to_rank import RANGES
from taskd.profiling import switches


@given(st.dictionaries(st.sampled_from(RANGES), st.sampled_from(["on", "off"])))
def test_what_is_on(states):
    found = switches.parse(json.dumps(states).encode())
    assert [RANGES[n] for n in found] == [r for r in RANGES if states.get(r) == "on"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"Steps": "on"}', "key 'Steps' is unknown; allowed are Step,"),
        ('{"Step": true}', "Step is 'True'; allowed are on and off"),
        ('{"Step": "ON"}', "allowed are on and off"),
        ("[" * 70_000, "bytes; allowed are 65536"),
        ("[" * 60_000, "not JSON"),
    ],
)
def test_what_makes_no_sense(text, why):
    with pytest.raises(switches.BadSwitch, match=why):
        switches.parse(text.encode())


@given(st.binary(max_size=200))
def test_garbage(data):
    with contextlib.suppress(switches.BadSwitch):
        assert set(switches.parse(data)) <= set(range(len(RANGES)))


def test_names():
    assert switches.numbers(["STEP", "communication"]) == (0, 4)
    assert switches.numbers(RANGES) == (0, 1, 2, 3, 4)
    with pytest.raises(switches.BadSwitch, match="range 'Stap' is unknown"):
        switches.numbers(["Stap"])


def test_a_file(tmp_path):
    path = tmp_path / "profilingSwitch"
    assert switches.read(path) == ()
    path.write_text('{"FP": "on"}')
    assert switches.read(path) == (2,)
