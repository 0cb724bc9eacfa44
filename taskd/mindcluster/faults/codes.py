"""faultCode.json and SwitchFaultCode.json: the level of each code of a device, and of each fault of
the switches in a node.

Codes of the parameter-plane network have their own lists (`...NetworkCodes`) and levels, also known
ones in the other lists. A code listed at several levels has the one of highest precedence. As in
the device plugin, ResetFaultCodes of switches are separated like SeparateFaultCodes, and a switch's
code that no list has is not handled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd.mindcluster.faults.findings import Report, entries, read, unknown
from taskd.mindcluster.faults.names import (
    MOST_DIGITS,
    BadCode,
    of_switch,
    parse_device,
    parse_switch,
)
from taskd.mindcluster.levels import Level

NAME, SWITCHES = "faultCode.json", "SwitchFaultCode.json"
DEVICE_KEYS = {
    "NotHandleFaultCodes": Level.NOT_HANDLE,
    "RestartRequestCodes": Level.RESTART_REQUEST,
    "RestartBusinessCodes": Level.RESTART_BUSINESS,
    "FreeRestartNPUCodes": Level.FREE_RESTART,
    "RestartNPUCodes": Level.RESTART,
    "SeparateNPUCodes": Level.SEPARATE,
    "PreSeparateNPUCodes": Level.PRE_SEPARATE,
    "SubHealthFaultCodes": Level.SUB_HEALTH,
}
NETWORK_KEYS = {
    "NotHandleFaultNetworkCodes": Level.NOT_HANDLE,
    "PreSeparateNPUNetworkCodes": Level.PRE_SEPARATE,
    "SeparateNPUNetworkCodes": Level.SEPARATE,
    "SubHealthFaultNetworkCodes": Level.SUB_HEALTH,
}
KEYS = {**DEVICE_KEYS, **NETWORK_KEYS}
SWITCH_KEYS = {
    "NotHandleFaultCodes": Level.NOT_HANDLE,
    "SubHealthFaultCodes": Level.SUB_HEALTH,
    "RestartRequestCodes": Level.RESTART_REQUEST,
    "RestartRequestFaultCodes": Level.RESTART_REQUEST,
    "PreSeparateFaultCodes": Level.PRE_SEPARATE,
    "SeparateFaultCodes": Level.SEPARATE,
    "ResetFaultCodes": Level.SEPARATE,
}
LINK_DOWN = "81078603"
# network codes, whichever list they are in
NETWORK = frozenset({LINK_DOWN, "81078607", "110000002", "110001024"})
NETWORK_LEVELS = frozenset(NETWORK_KEYS.values())
# severities that the driver reports with a code, in the documents' order: 提示, 次要, 重要, 紧急
SEVERITIES = ("hint", "minor", "major", "critical")
HARMLESS = SEVERITIES[:2]
# a code -> its level, and the list that it is from
Table = dict[str, tuple[Level, str]]


@dataclass(frozen=True)
class Rated:
    """The level of a code, and the rule that set it."""

    level: Level
    rule: str


@dataclass(frozen=True)
class Codes:
    table: Mapping[str, tuple[Level, str]] = field(default_factory=dict)
    file: str = NAME

    def rate(self, code: str, severity: str = "") -> Rated:
        """Rate a code. `severity`, as the driver reported it or empty, decides for codes that no
        list has. Unlike in the device plugin, each of these is rated by itself: a harmless known
        code does not hide a critical one. A switch's code that no list has is not handled."""
        found = self.table.get(code)
        if of_switch(code):
            level, key = found or (Level.NOT_HANDLE, "no list")
            return Rated(level, f"{code} is in {key} of {SWITCHES}")
        if found is not None:
            return Rated(found[0], f"{code} is in {found[1]} of {self.file}")
        where = f"in no list of {self.file}"
        if code in NETWORK:
            return Rated(Level.PRE_SEPARATE, f"{code} is a network code that is {where}")
        level = Level.NOT_HANDLE if severity in HARMLESS else Level.SEPARATE
        told = f"its severity is {severity}" if severity else "its severity was not reported"
        return Rated(level, f"{code} is {where}, and {told}")


def parse(data: bytes, file: str = NAME) -> tuple[Codes, Report]:
    """Parse faultCode.json. Raises findings.Broken if it is unusable as a whole."""
    report, table = Report(file), Table()
    wanted = f"a string of up to {MOST_DIGITS} hexadecimal digits"
    for key, path, code in _listed(data, KEYS, parse_device, wanted, report):
        level = KEYS[key]
        if code in NETWORK and level not in NETWORK_LEVELS:
            report.warn(
                path,
                f"{code} is a network code, which cannot be {level.word}: read as NotHandleFault",
            )
            level = Level.NOT_HANDLE
        _enter(table, code, level, key, path, report)
    return Codes(table, file), report


def parse_switches(data: bytes, file: str = SWITCHES) -> tuple[Table, Report]:
    """Parse SwitchFaultCode.json. Raises findings.Broken if it is unusable as a whole."""
    report, table = Report(file), Table()
    wanted = "such as [0x00f1ff09,155913,cpu,na]"
    for key, path, code in _listed(data, SWITCH_KEYS, parse_switch, wanted, report):
        _enter(table, code, SWITCH_KEYS[key], key, path, report)
    return table, report


def _listed(
    data: bytes,
    keys: Mapping[str, Level],
    parse: Callable[[str], str],
    wanted: str,
    report: Report,
) -> Iterator[tuple[str, str, str]]:
    """Each code with its list and its place there, once in each list. `wanted`: how one looks."""
    raw = read(data, report)
    unknown(raw, tuple(keys), report)
    if not set(raw) & set(keys):
        raise report.broken("", "it has no list of codes", allowed=", ".join(keys))
    for key in (k for k in keys if k in raw):
        if not isinstance(raw[key], list):  # its codes would be rated as unknown ones
            raise report.broken(key, "a list of codes is expected", raw[key])
        seen: set[str] = set()
        for path, item in entries(raw[key], key, report):
            if (code := code_of(item, parse)) is None:
                report.warn(path, "not a fault code; skipped", item, wanted)
            elif code in seen:
                report.warn(path, f"{code} is in this list twice")
            else:
                seen.add(code)
                yield key, path, code


def code_of(item: Any, parse: Callable[[str], str]) -> str | None:
    try:
        return parse(item) if isinstance(item, str) else None
    except BadCode:
        return None


def _enter(table: Table, code: str, level: Level, key: str, path: str, report: Report) -> None:
    before = table.get(code)
    if before is not None and before[0] != level:
        kept = max(before[0], level)
        report.warn(path, f"{code} is also in {before[1]}: {kept.word} takes precedence")
    if before is None or level > before[0]:
        table[code] = (level, key)
