"""Random and mutated files: never a traceback, and never another level for a code that was not
touched."""

from __future__ import annotations

import json
from functools import partial

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from taskd.mindcluster.faults import codes, customization, names
from taskd.mindcluster.faults.codes import KEYS
from taskd.mindcluster.faults.configuration import SHIPPED
from taskd.mindcluster.faults.findings import Broken
from taskd.mindcluster.faults.limits import NEWER

CODES, RULES = ((SHIPPED / name).read_bytes() for name in (codes.NAME, customization.NAME))
LONG = settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
NAMES = st.text(max_size=12) | st.sampled_from([*KEYS, "EventId", "Times"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=20,
)
FREQUENCY = {
    "EventId": JSON,
    "TimeWindow": JSON,
    "Times": JSON,
    "FaultHandling": JSON,
    "ReleaseTimeWindow": JSON,
}
DURATION = {"EventId": JSON, "FaultTimeout": JSON, "FaultHandling": JSON}
GRACE = st.sampled_from(["WaitDeviceResetTime", "WaitFlushingCMTime", "x"])
# what is done to bytes: where, how many go, what comes
MUTATIONS = st.lists(
    st.tuples(st.integers(0, 12_000), st.integers(0, 40), st.binary(max_size=12)),
    min_size=1,
    max_size=4,
)


def mutated(data, mutations):
    for at, gone, new in mutations:
        at %= len(data) + 1
        data = data[:at] + new + data[at + gone :]
    return data


def levels(table):
    return {code: level for code, (level, _) in table.table.items()}


def refused_or_read(parse, data):
    try:
        parsed, report = parse(data)
    except Broken as error:
        assert error.finding.text
        return None
    assert all(f.file and f.text and str(f) for f in report.findings)
    return parsed


newer = partial(customization.parse, dialect=NEWER)


@given(st.binary(max_size=400))
@LONG
def test_random_bytes(data):
    refused_or_read(codes.parse, data)
    refused_or_read(customization.parse, data)
    refused_or_read(newer, data)


@given(JSON)
@LONG
def test_random_json(raw):
    data = json.dumps(raw).encode()
    refused_or_read(codes.parse, data)
    refused_or_read(customization.parse, data)
    refused_or_read(newer, data)


@given(
    st.dictionaries(
        st.sampled_from(list(KEYS)),
        st.lists(JSON | st.from_regex(r"[0-9A-F]{8}", fullmatch=True), max_size=6),
    )
)
@LONG
def test_random_tables(raw):
    refused_or_read(codes.parse, json.dumps(raw).encode())


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "GraceTolerance": st.dictionaries(GRACE, JSON) | JSON,
            "FaultFrequency": st.lists(st.fixed_dictionaries(FREQUENCY) | JSON, max_size=3),
            "FaultDuration": st.lists(st.fixed_dictionaries(DURATION) | JSON, max_size=3),
        },
    )
)
@LONG
def test_random_rules(raw):
    refused_or_read(customization.parse, json.dumps(raw).encode())
    refused_or_read(newer, json.dumps(raw).encode())


@given(MUTATIONS)
@LONG
def test_the_shipped_table_mutated(mutations):
    """A code whose text still stands in the same list, and in no other one, has its level."""
    data = mutated(CODES, mutations)
    table = refused_or_read(codes.parse, data)
    if table is None:
        return
    before, after = levels(codes.parse(CODES)[0]), levels(table)
    raw = json.loads(data.decode("utf-8-sig"))
    places: dict[int, set[str]] = {}
    for key, texts in raw.items():
        for text in texts if key in KEYS else ():
            try:
                places.setdefault(names.parse_code(text), set()).add(key)
            except (names.BadCode, AttributeError):
                continue
    where = {
        names.parse_code(text): key for key, texts in json.loads(CODES).items() for text in texts
    }
    for code, level in before.items():
        if places.get(code) == {where[code]}:
            assert after[code] == level


@given(MUTATIONS)
@LONG
def test_the_shipped_rules_mutated(mutations):
    """An entry that is as it was counts as it did, for the codes that no other entry names."""
    rules = refused_or_read(newer, mutated(RULES, mutations))
    if rules is None:
        return
    for rule in rules.frequency.values():
        assert 60 <= rule.window <= 864_000
        assert 1 <= rule.times <= 100
        assert rule.release is None or 60 <= rule.release < 2**32
    for long in rules.duration.values():
        assert 0 <= long.timeout <= 600 and 0 <= long.recover <= 86_400
    assert 60 <= rules.grace.reset <= 180 and 1 <= rules.grace.heals <= 30
