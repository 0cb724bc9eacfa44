"""faultCustomization.json: how often, and for how long, a code may be present before its device
gets another level.

`limits.py` has the names, ranges and defaults: the guide's, or those of newer versions of the
device plugin. What only the other one allows is refused with that hint. A ReleaseTimeWindow of 0,
or none: see `Frequency`.

A faulty entry of FaultFrequency is skipped; an invalid code is dropped from its list. In
GraceTolerance and FaultDuration an unusable value is replaced by its default. The first valid entry
for a code counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd.mindcluster.faults.codes import LINK_DOWN
from taskd.mindcluster.faults.findings import Report, entries, read, unknown, whole
from taskd.mindcluster.faults.limits import GUIDE, HINT, NEWER, Limits, Range, WithDefault
from taskd.mindcluster.faults.names import MOST_DIGITS, BadCode, parse_code, show
from taskd.mindcluster.levels import Level

NAME = "faultCustomization.json"
SECTIONS = ("GraceTolerance", "FaultFrequency", "FaultDuration")
LONGEST = 2**32  # seconds; what newer versions write for "never"


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
    """Grace periods in seconds. `reads`: for the training process to be notified and end; `reset`:
    for a device reset; `heals`: for a fault to clear by itself, None if it never costs more."""

    reads: float = 30.0
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
    frequency: Mapping[int, Frequency] = field(default_factory=dict)
    duration: Mapping[int, Duration] = field(default_factory=lambda: {LINK_DOWN: Duration()})


def parse(data: bytes, file: str = NAME, limits: Limits = GUIDE) -> tuple[Customization, Report]:
    """Parse the file. Raises findings.Broken if it is unusable as a whole."""
    report = Report(file)
    raw = read(data, report)
    unknown(raw, SECTIONS, report)
    grace = _grace(raw.get("GraceTolerance", {}), limits, report)
    frequency = _frequency(raw.get("FaultFrequency", []), limits, report)
    duration = _duration(raw.get("FaultDuration", []), limits, report)
    return Customization(grace, frequency, duration), report


def _grace(raw: Any, limits: Limits, report: Report) -> Grace:
    path = "GraceTolerance"
    if not isinstance(raw, dict):
        report.warn(path, "an object is expected; the defaults are used", raw)
        raw = {}
    for name in [n for n in raw if n in NEWER.grace and n not in limits.grace]:
        report.warn(f"{path}.{name}", f"the guide has no such time; ignored; {HINT}", raw[name])
    rest = {n: v for n, v in raw.items() if n not in NEWER.grace}
    unknown(rest, tuple(limits.grace), report, path)
    found = {
        name: _limit(raw, name, range_, NEWER.grace.get(name), path, report)
        for name, range_ in limits.grace.items()
    }
    reads = found.get("WaitProcessReadCMTime") or found["WaitFlushingCMTime"]
    return Grace(reads, found["WaitDeviceResetTime"], found.get("WaitFaultSelfHealingTime"))


def _limit(
    raw: dict[str, Any],
    name: str,
    limits: WithDefault,
    newer: WithDefault | None,
    path: str,
    report: Report,
) -> float:
    lowest, highest, default = limits
    if name not in raw:
        return float(default)
    value = whole(raw[name], lowest, highest)
    if value is None:
        report.warn(
            f"{path}.{name}",
            f"unusable, {default} is used{_hint(raw[name], newer)}",
            raw[name],
            f"a number of seconds from {lowest} to {highest}",
        )
    return float(default if value is None else value)


def _hint(value: Any, newer: Range | WithDefault | None) -> str:
    """Say so if newer versions allow the value."""
    if newer is None or whole(value, newer[0], newer[1]) is None:
        return ""
    return f"; {HINT}"


def _frequency(raw: Any, limits: Limits, report: Report) -> dict[int, Frequency]:
    found: dict[int, Frequency] = {}
    for path, item in entries(raw, "FaultFrequency", report):
        if not isinstance(item, dict):
            report.warn(path, "an object is expected; the entry is skipped", item)
            continue
        if "ReleaseTimeWindow" in item and not limits.release:
            item = dict(item)
            without = f"the guide has no such time; ignored; {HINT}"
            report.warn(f"{path}.ReleaseTimeWindow", without, item.pop("ReleaseTimeWindow"))
        unknown(
            item,
            ("EventId", "TimeWindow", "Times", "FaultHandling", "ReleaseTimeWindow"),
            report,
            path,
        )
        codes = _codes(item, path, report)
        window = _needed(item, "TimeWindow", (60, 864_000), "seconds", path, report)
        times = _needed(item, "Times", limits.times, "occurrences", path, report, NEWER.times)
        level = _handling(item, limits.counted, path, report, newer=NEWER.counted)
        release = item.get("ReleaseTimeWindow")
        bad_release = (
            release is not None
            and whole(release, 0, 0) is None
            and whole(release, 60, LONGEST) is None
        )
        if bad_release:
            report.warn(
                f"{path}.ReleaseTimeWindow",
                "the entry is skipped",
                release,
                f"a number of seconds from 60 to {LONGEST}, or 0",
            )
        if not codes or window is None or times is None or level is None or bad_release:
            continue
        seconds = float(release) if release and release < LONGEST else None
        for code in codes:
            if code in found:
                report.warn(
                    path, f"{show(code)} already has an entry, {found[code].path}, which counts"
                )
            else:
                found[code] = Frequency(window, times, level, seconds, path)
    return found


def _duration(raw: Any, limits: Limits, report: Report) -> dict[int, Duration]:
    found: dict[int, Duration] = {}
    for path, item in entries(raw, "FaultDuration", report):
        if not isinstance(item, dict):
            report.warn(path, "an object is expected; the entry is skipped", item)
            continue
        unknown(item, ("EventId", "FaultTimeout", "RecoverTimeout", "FaultHandling"), report, path)
        codes = _codes(item, path, report)
        if not codes:
            continue
        timeout = _limit(item, "FaultTimeout", limits.timeout, NEWER.timeout, path, report)
        recover = _limit(item, "RecoverTimeout", limits.recover, NEWER.recover, path, report)
        level = (
            _handling(item, limits.lasting, path, report, "PreSeparateNPU is used", NEWER.lasting)
            if "FaultHandling" in item
            else None
        )
        for code in codes:
            if code not in limits.durable:
                can = ", ".join(show(c) for c in sorted(limits.durable))
                hint = f"; {HINT}" if code in NEWER.durable else ""
                report.warn(
                    f"{path}.EventId",
                    f"a duration cannot be configured for this code; skipped{hint}",
                    show(code),
                    can,
                )
            elif code in found:
                report.warn(
                    path, f"{show(code)} already has an entry, {found[code].path}, which counts"
                )
            else:
                found[code] = Duration(timeout, recover, level or Level.PRE_SEPARATE, path)
    return {LINK_DOWN: Duration(), **found}


def _codes(item: dict[str, Any], path: str, report: Report) -> list[int]:
    """The codes of an entry, each once. An invalid one is dropped; the entry stays."""
    raw = item.get("EventId")
    if not isinstance(raw, list) or not raw:
        report.warn(
            f"{path}.EventId",
            "the entry is skipped",
            raw if raw is not None else "absent",
            "a list of fault codes, not empty",
        )
        return []
    found: dict[int, None] = {}  # an ordered set
    for number, text in enumerate(raw):
        try:
            code = parse_code(text) if isinstance(text, str) else None
        except BadCode:
            code = None
        if code is None:
            report.warn(
                f"{path}.EventId[{number}]",
                "not a fault code; skipped",
                text,
                f"up to {MOST_DIGITS} hexadecimal digits",
            )
        elif code in found:
            report.warn(f"{path}.EventId[{number}]", f"{show(code)} is in this entry twice")
        else:
            found[code] = None
    return list(found)


def _needed(
    item: dict[str, Any],
    name: str,
    limits: Range,
    unit: str,
    path: str,
    report: Report,
    newer: Range | None = None,
) -> int | None:
    lowest, highest = limits
    value = whole(item.get(name), lowest, highest)
    if value is None:
        report.warn(
            f"{path}.{name}",
            f"the entry is skipped{_hint(item.get(name), newer)}",
            item.get(name, "absent"),
            f"a number of {unit} from {lowest} to {highest}",
        )
    return value


def _handling(
    item: dict[str, Any],
    allowed: Mapping[str, Level],
    path: str,
    report: Report,
    what: str = "the entry is skipped",
    newer: Mapping[str, Level] | None = None,
) -> Level | None:
    raw = item.get("FaultHandling")
    level = allowed.get(raw) if isinstance(raw, str) else None
    if level is None:
        hint = f"; {HINT}" if isinstance(raw, str) and newer and raw in newer else ""
        report.warn(
            f"{path}.FaultHandling",
            f"{what}{hint}",
            "absent" if raw is None else raw,
            ", ".join(allowed),
        )
    return level
