"""faultCustomization.json: how often, and for how long, a code may be present before its device
gets another level.

The guide (seed 004) and newer versions of the device plugin differ in names and ranges; taskd
accepts what either allows:

                                    guide                   newer                   here
    GraceTolerance                  WaitFlushingCMTime      WaitProcessReadCMTime   both
      .WaitDeviceResetTime          60-120, 60              60-180, 150             60-180, 150*
      .WaitFaultSelfHealingTime     -                       1-30, 15                1-30, 15
    FaultFrequency[].Times          2-100                   1-100                   1-100
      .ReleaseTimeWindow            -                       60-4294967296           as newer, 0
    FaultDuration[].EventId         81078603 only           any                     DURABLE
      .FaultTimeout                 1-30                    0-600                   0-600, 20
      .RecoverTimeout               1-60, 60                0-86400                 0-86400, 60
      .FaultHandling                PreSeparateNPU          all but Manually...     the same, Pre...

* 60 beside WaitFlushingCMTime. A ReleaseTimeWindow of 0, or none: see `Frequency`.

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
from taskd.mindcluster.faults.names import MOST_DIGITS, BadCode, parse_code, show
from taskd.mindcluster.levels import NAMED, Level

NAME = "faultCustomization.json"
SECTIONS = ("GraceTolerance", "FaultFrequency", "FaultDuration")
HANDLINGS = {word: level for word, level in NAMED.items() if level is not Level.NORMAL}
# from the guide, and the two for which newer guides show an entry: a link between super-pods, and
# failing memory
DURABLE = frozenset({LINK_DOWN, 0x81B18603, 0x80E01801})
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
    for a device reset; `heals`: for a fault to clear by itself."""

    reads: float = 30.0
    reset: float = 150.0
    heals: float = 15.0

    def escalations(self, level: Level) -> tuple[tuple[float, Level], ...]:
        """The further levels of a code of `level` that stays present, each with the seconds after
        which it applies."""
        if level is Level.RESTART_BUSINESS:
            return ((self.heals, Level.RESTART), (self.heals + self.reset, Level.SEPARATE))
        return (
            ((self.reset, Level.SEPARATE),) if level in (Level.FREE_RESTART, Level.RESTART) else ()
        )


@dataclass(frozen=True)
class Customization:
    grace: Grace = Grace()
    frequency: Mapping[int, Frequency] = field(default_factory=dict)
    duration: Mapping[int, Duration] = field(default_factory=lambda: {LINK_DOWN: Duration()})


def parse(data: bytes, file: str = NAME) -> tuple[Customization, Report]:
    """Parse the file. Raises findings.Broken if it is unusable as a whole."""
    report = Report(file)
    raw = read(data, report)
    unknown(raw, SECTIONS, report)
    grace = _grace(raw.get("GraceTolerance", {}), report)
    frequency = _frequency(raw.get("FaultFrequency", []), report)
    return Customization(grace, frequency, _duration(raw.get("FaultDuration", []), report)), report


def _grace(raw: Any, report: Report) -> Grace:
    path = "GraceTolerance"
    if not isinstance(raw, dict):
        report.warn(path, "an object is expected; the defaults are used", raw)
        raw = {}
    known = (
        "WaitProcessReadCMTime",
        "WaitFlushingCMTime",
        "WaitDeviceResetTime",
        "WaitFaultSelfHealingTime",
    )
    unknown(raw, known, report, path)
    newer = _limit(raw, "WaitProcessReadCMTime", 5, 90, 30, path, report)
    older = _limit(raw, "WaitFlushingCMTime", 90, 300, 90, path, report)
    guide = "WaitFlushingCMTime" in raw and "WaitProcessReadCMTime" not in raw
    reset = _limit(raw, "WaitDeviceResetTime", 60, 180, 60 if guide else 150, path, report)
    return Grace(
        older if guide else newer,
        reset,
        _limit(raw, "WaitFaultSelfHealingTime", 1, 30, 15, path, report),
    )


def _limit(
    raw: dict[str, Any],
    name: str,
    lowest: int,
    highest: int,
    default: int,
    path: str,
    report: Report,
) -> float:
    if name not in raw:
        return float(default)
    value = whole(raw[name], lowest, highest)
    if value is None:
        report.warn(
            f"{path}.{name}",
            f"unusable, {default} is used",
            raw[name],
            f"a number of seconds from {lowest} to {highest}",
        )
    return float(default if value is None else value)


def _frequency(raw: Any, report: Report) -> dict[int, Frequency]:
    found: dict[int, Frequency] = {}
    for path, item in entries(raw, "FaultFrequency", report):
        if not isinstance(item, dict):
            report.warn(path, "an object is expected; the entry is skipped", item)
            continue
        unknown(
            item,
            ("EventId", "TimeWindow", "Times", "FaultHandling", "ReleaseTimeWindow"),
            report,
            path,
        )
        codes = _codes(item, path, report)
        window = _needed(item, "TimeWindow", 60, 864_000, "seconds", path, report)
        times = _needed(item, "Times", 1, 100, "occurrences", path, report)
        level = _handling(item, HANDLINGS, path, report)
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


def _duration(raw: Any, report: Report) -> dict[int, Duration]:
    found: dict[int, Duration] = {}
    allowed = {
        word: level for word, level in HANDLINGS.items() if level is not Level.MANUALLY_SEPARATE
    }
    for path, item in entries(raw, "FaultDuration", report):
        if not isinstance(item, dict):
            report.warn(path, "an object is expected; the entry is skipped", item)
            continue
        unknown(item, ("EventId", "FaultTimeout", "RecoverTimeout", "FaultHandling"), report, path)
        codes = _codes(item, path, report)
        if not codes:
            continue
        timeout = _limit(item, "FaultTimeout", 0, 600, 20, path, report)
        recover = _limit(item, "RecoverTimeout", 0, 86_400, 60, path, report)
        level = (
            _handling(item, allowed, path, report, "PreSeparateNPU is used")
            if "FaultHandling" in item
            else None
        )
        for code in codes:
            if code not in DURABLE:
                can = ", ".join(show(c) for c in sorted(DURABLE))
                report.warn(
                    f"{path}.EventId",
                    "a duration cannot be configured for this code; skipped",
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
    item: dict[str, Any], name: str, lowest: int, highest: int, unit: str, path: str, report: Report
) -> int | None:
    value = whole(item.get(name), lowest, highest)
    if value is None:
        allowed = f"a number of {unit} from {lowest} to {highest}"
        report.warn(f"{path}.{name}", "the entry is skipped", item.get(name, "absent"), allowed)
    return value


def _handling(
    item: dict[str, Any],
    allowed: Mapping[str, Level],
    path: str,
    report: Report,
    what: str = "the entry is skipped",
) -> Level | None:
    raw = item.get("FaultHandling")
    level = allowed.get(raw) if isinstance(raw, str) else None
    if level is None:
        report.warn(
            f"{path}.FaultHandling", what, "absent" if raw is None else raw, ", ".join(allowed)
        )
    return level
