"""faultCode.json: the level of each code of a device.

Codes of the parameter-plane network have their own lists (`...NetworkCodes`); known network codes
in the device lists are moved there. A code listed at several levels has the one of highest
precedence.
Those of switches are in a file of their own (`switches.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from taskd.mindcluster.faults import switches
from taskd.mindcluster.faults.findings import Report, entries, read, unknown
from taskd.mindcluster.faults.names import MOST_DIGITS, BadCode, of_switch, parse_device, show
from taskd.mindcluster.levels import Level

NAME = "faultCode.json"
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
LINK_DOWN = 0x81078603
# network codes, whichever list they are in
NETWORK = frozenset({LINK_DOWN, 0x81078607, 0x110000002, 0x110001024})
NETWORK_LEVELS = frozenset(NETWORK_KEYS.values())
# severities that the driver reports with a code, in the documents' order: 提示, 次要, 重要, 紧急
SEVERITIES = ("hint", "minor", "major", "critical")
HARMLESS = SEVERITIES[:2]


@dataclass(frozen=True)
class Rated:
    """The level of a code, and the rule that set it."""

    level: Level
    rule: str


@dataclass(frozen=True)
class Codes:
    # level, and the key it is from
    devices: Mapping[int, tuple[Level, str]] = field(default_factory=dict)
    network: Mapping[int, tuple[Level, str]] = field(default_factory=dict)
    switches: Mapping[int, tuple[Level, str]] = field(default_factory=dict)
    file: str = NAME

    def rate(self, code: int, severity: str = "") -> Rated:
        """Rate a code. `severity`, as the driver reported it or empty, decides for codes that no
        list has. Unlike in the device plugin, each of these is rated by itself: a harmless known
        code does not hide a critical one. A switch's code that no list has is not handled."""
        if of_switch(code):
            level, key = self.switches.get(code, (Level.NOT_HANDLE, ""))
            where = f"{key} of {switches.NAME}" if key else f"no list of {switches.NAME}"
            return Rated(level, f"{show(code)} is in {where}")
        found = max((t[code] for t in (self.devices, self.network) if code in t), default=None)
        if found is not None:
            return Rated(found[0], f"{show(code)} is in {found[1]} of {self.file}")
        if code in NETWORK:
            return Rated(
                Level.PRE_SEPARATE,
                f"{show(code)} is a network code that is in no list of {self.file}",
            )
        level = Level.NOT_HANDLE if severity in HARMLESS else Level.SEPARATE
        told = f"its severity is {severity}" if severity else "its severity was not reported"
        return Rated(level, f"{show(code)} is in no list of {self.file}, and {told}")


def parse(data: bytes, file: str = NAME) -> tuple[Codes, Report]:
    """Parse the file. Raises findings.Broken if it is unusable as a whole."""
    report = Report(file)
    raw = read(data, report)
    unknown(raw, tuple(KEYS), report)
    if not set(raw) & set(KEYS):
        raise report.broken("", "it has no list of codes", allowed=", ".join(DEVICE_KEYS))
    devices: dict[int, tuple[Level, str]] = {}
    network: dict[int, tuple[Level, str]] = {}
    for key in (k for k in KEYS if k in raw):
        if not isinstance(raw[key], list):  # its codes would be rated as unknown ones
            raise report.broken(key, "a list of codes is expected", raw[key])
        seen: set[int] = set()
        for path, item in entries(raw[key], key, report):
            code = _code(item, path, report)
            if code is None:
                continue
            if code in seen:
                report.warn(path, f"{show(code)} is in this list twice")
                continue
            seen.add(code)
            level, table = KEYS[key], network if key in NETWORK_KEYS or code in NETWORK else devices
            if table is network and level not in NETWORK_LEVELS:
                report.warn(
                    path,
                    f"{show(code)} is a network code, which cannot be {level.word}: read as"
                    " NotHandleFault",
                )
                level = Level.NOT_HANDLE
            _enter(table, code, level, key, path, report)
    for code in devices.keys() & network.keys():
        level, key = max(devices[code], network[code])
        both = f"{devices[code][1]} and {network[code][1]}"
        report.warn(key, f"{show(code)} is in {both}: {level.word} takes precedence")
    return Codes(devices, network, file=file), report


def _code(item: Any, path: str, report: Report) -> int | None:
    try:
        if isinstance(item, str):
            return parse_device(item)
    except BadCode:
        pass
    report.warn(
        path,
        "not a fault code; skipped",
        item,
        f"a string of up to {MOST_DIGITS} hexadecimal digits",
    )
    return None


def _enter(
    table: dict[int, tuple[Level, str]],
    code: int,
    level: Level,
    key: str,
    path: str,
    report: Report,
) -> None:
    before = table.get(code)
    if before is not None and before[0] != level:
        kept = max(before[0], level)
        report.warn(
            path,
            f"{show(code)} is also in {before[1]}: {kept.word} takes precedence",
        )
    if before is None or level > before[0]:
        table[code] = (level, key)
