"""faultCustomization.json: how often, and for how long, a code may be present before its device
gets another level.

`limits.py` has the names, ranges and defaults: the guide's, or those of newer versions of the
device plugin. A value that only the other one allows is refused with that hint.

A faulty entry of FaultFrequency is skipped; an invalid code is dropped from its list. In
GraceTolerance and FaultDuration an unusable value is replaced by its default. The first valid entry
for a code counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd.mindcluster.faults.codes import LINK_DOWN, code_of
from taskd.mindcluster.faults.findings import Report, entries, read, unknown
from taskd.mindcluster.faults.limits import DURABLE, GUIDE, HINT, LONGEST, NEWER, TABLE
from taskd.mindcluster.faults.names import MOST_DIGITS, parse_code
from taskd.mindcluster.levels import Level

NAME = "faultCustomization.json"
GRACE, FREQUENCY, DURATION = TABLE


@dataclass(frozen=True)
class Frequency:
    """`times` occurrences within `window` seconds set the level `level`. `release`: seconds after
    the last recovery until it is withdrawn. None: ManuallySeparateNPU until an operator releases
    the device, others once the code is absent and fewer than `times` are left."""

    window: float
    times: int
    level: Level
    release: float | None = None
    path: str = ""


@dataclass(frozen=True)
class Duration:
    """A code present for more than `timeout` seconds sets the level `level`, until it has been
    absent for more than `recover`."""

    timeout: float = 20.0  # as in the vendor's own file
    recover: float = 60.0
    level: Level = Level.PRE_SEPARATE
    path: str = ""


@dataclass(frozen=True)
class Grace:
    """Grace periods in seconds. `reset`: for a device reset; `heals`: for a fault to clear by
    itself, None if it never costs more."""

    reset: float = 150.0
    heals: float | None = 15.0

    def escalations(self, level: Level) -> tuple[tuple[float, Level], ...]:
        """The further levels of a code of `level` that stays present, each with the seconds after
        which it applies."""
        if level is Level.RESTART_BUSINESS:
            if self.heals is None:
                return ()
            return ((self.heals, Level.RESTART), (self.heals + self.reset, Level.SEPARATE))
        return (
            ((self.reset, Level.SEPARATE),) if level in (Level.FREE_RESTART, Level.RESTART) else ()
        )


@dataclass(frozen=True)
class Customization:
    grace: Grace = Grace()
    frequency: Mapping[str, Frequency] = field(default_factory=dict)
    duration: Mapping[str, Duration] = field(default_factory=lambda: {LINK_DOWN: Duration()})

    def of(self, code: str) -> tuple[Frequency | None, Duration | None]:
        """The rules for a code."""
        return self.frequency.get(code), self.duration.get(code)


def parse(data: bytes, file: str = NAME, dialect: str = GUIDE) -> tuple[Customization, Report]:
    """Parse the file; `dialect`: one of limits.DIALECTS. Raises findings.Broken if it is unusable
    as a whole."""
    report = Report(file)
    raw = read(data, report)
    unknown(raw, tuple(TABLE), report)
    frequency: dict[str, Frequency] = {}
    duration = {LINK_DOWN: Duration()}
    for path, codes, found in _entries(raw, FREQUENCY, dialect, report):
        if found is not None:
            release = found.get("ReleaseTimeWindow")
            window = release if release and release < LONGEST else None
            times, level = found["Times"], found["FaultHandling"]
            rule = Frequency(found["TimeWindow"], times, level, window, path)
            frequency |= dict.fromkeys(_first(codes, frequency, path, report), rule)
    for path, codes, found in _entries(raw, DURATION, dialect, report):
        assert found is not None  # each of its fields has a default
        timeout, recover = found["FaultTimeout"], found["RecoverTimeout"]
        lasting = Duration(timeout, recover, found["FaultHandling"], path)
        durable = _durable(codes, dialect, path, report)
        duration |= dict.fromkeys(_first(durable, duration, path, report), lasting)
    return Customization(_grace(raw, dialect, report), frequency, duration), report


def _grace(raw: dict[str, Any], dialect: str, report: Report) -> Grace:
    item = raw.get(GRACE, {})
    if not isinstance(item, dict):
        report.warn(GRACE, "an object is expected; the defaults are used", item)
        item = {}
    found = _fields(GRACE, item, dialect, GRACE, report)
    assert found is not None
    return Grace(found["WaitDeviceResetTime"], found.get("WaitFaultSelfHealingTime"))


def _entries(
    raw: dict[str, Any], section: str, dialect: str, report: Report
) -> Iterator[tuple[str, list[str], dict[str, Any] | None]]:
    """The entries of a section that name codes: their place, these codes, and their fields."""
    for path, item in entries(raw.get(section, []), section, report):
        if not isinstance(item, dict):
            report.warn(path, "an object is expected; the entry is skipped", item)
        elif codes := _codes(item, path, report):
            yield path, codes, _fields(section, item, dialect, path, report)


def _fields(
    section: str, item: dict[str, Any], dialect: str, path: str, report: Report
) -> dict[str, Any] | None:
    """The values of an entry. None: it is skipped."""
    table, found, usable = TABLE[section], dict[str, Any](), True
    known = [name for name in table if dialect in table[name]]
    more = [name for name in item if name not in known and NEWER in table.get(name, ())]
    for name in more:
        report.warn(f"{path}.{name}", f"the guide has no such time; ignored; {HINT}", item[name])
    rest = {name: value for name, value in item.items() if name not in more}
    event_id = () if section == GRACE else ("EventId",)
    unknown(rest, (*event_id, *known), report, path)
    for name in known:
        limit, newer = table[name][dialect], table[name].get(NEWER)
        value = limit.read(item[name]) if name in item else limit.default
        if value is None:
            if section == FREQUENCY:
                text, usable = "the entry is skipped", False
            else:
                value = limit.default
                word = value.word if isinstance(value, Level) else value
                text = f"unusable, {word} is used"
            if newer is not None and newer.read(item.get(name)) is not None:
                text += f"; {HINT}"
            report.warn(f"{path}.{name}", text, item.get(name, "absent"), str(limit))
        found[name] = value
    return found if usable else None


def _first(
    codes: list[str], known: Mapping[str, Frequency | Duration], path: str, report: Report
) -> Iterator[str]:
    """Those that have no entry yet."""
    for code in codes:
        if code in known and known[code].path:
            report.warn(path, f"{code} already has an entry, {known[code].path}, which counts")
        else:
            yield code


def _durable(codes: list[str], dialect: str, path: str, report: Report) -> list[str]:
    """Those for which a duration may be configured."""
    allowed = DURABLE[dialect]
    for code in (code for code in codes if code not in allowed):
        text = "a duration cannot be configured for this code; skipped"
        hint = f"; {HINT}" if code in DURABLE[NEWER] else ""
        report.warn(f"{path}.EventId", text + hint, code, ", ".join(sorted(allowed)))
    return [code for code in codes if code in allowed]


def _codes(item: dict[str, Any], path: str, report: Report) -> list[str]:
    """The codes of an entry, each once. An invalid one is dropped; the entry stays."""
    raw = item.get("EventId")
    if not isinstance(raw, list) or not raw:
        value = "absent" if raw is None else raw
        text, allowed = "the entry is skipped", "a list of fault codes, not empty"
        report.warn(f"{path}.EventId", text, value, allowed)
        return []
    found: dict[str, None] = {}  # an ordered set
    for number, text in enumerate(raw):
        where = f"{path}.EventId[{number}]"
        if (code := code_of(text, parse_code)) is None:
            allowed = f"up to {MOST_DIGITS} hexadecimal digits"
            report.warn(where, "not a fault code; skipped", text, allowed)
        elif code in found:
            report.warn(where, f"{code} is in this entry twice")
        else:
            found[code] = None
    return list(found)
