"""SwitchFaultCode.json: the level of each fault of the switches in a node.

As in the device plugin, ResetFaultCodes are separated like SeparateFaultCodes, and a code that no
list has is not handled. A code listed at several levels has the one of highest precedence.
"""

from __future__ import annotations

from typing import Any

from taskd.mindcluster.faults.findings import Report, entries, read, unknown
from taskd.mindcluster.faults.names import BadCode, parse_switch, show
from taskd.mindcluster.levels import Level

NAME = "SwitchFaultCode.json"
KEYS = {
    "NotHandleFaultCodes": Level.NOT_HANDLE,
    "SubHealthFaultCodes": Level.SUB_HEALTH,
    "RestartRequestCodes": Level.RESTART_REQUEST,
    "RestartRequestFaultCodes": Level.RESTART_REQUEST,
    "PreSeparateFaultCodes": Level.PRE_SEPARATE,
    "SeparateFaultCodes": Level.SEPARATE,
    "ResetFaultCodes": Level.SEPARATE,
}
# a switch's code -> its level, and the list that it is from
Table = dict[int, tuple[Level, str]]


def parse(data: bytes, file: str = NAME) -> tuple[Table, Report]:
    """Parse the file. Raises findings.Broken if it is unusable as a whole."""
    report = Report(file)
    raw = read(data, report)
    unknown(raw, tuple(KEYS), report)
    if not set(raw) & set(KEYS):
        raise report.broken("", "it has no list of codes", allowed=", ".join(KEYS))
    table: Table = {}
    for key in (k for k in KEYS if k in raw):
        if not isinstance(raw[key], list):  # its codes would not be handled
            raise report.broken(key, "a list of codes is expected", raw[key])
        for path, item in entries(raw[key], key, report):
            code = _code(item, path, report)
            if code is None:
                continue
            before, level = table.get(code), KEYS[key]
            if before is not None:
                kept = max(before[0], level)
                report.warn(path, f"{show(code)} is also in {before[1]}: {kept.word} counts")
            if before is None or level > before[0]:
                table[code] = level, key
    return table, report


def _code(item: Any, path: str, report: Report) -> int | None:
    try:
        if isinstance(item, str):
            return parse_switch(item)
    except BadCode:
        pass
    report.warn(
        path, "not a switch's fault code; skipped", item, "such as [0x00f1ff09,155913,cpu,na]"
    )
    return None
