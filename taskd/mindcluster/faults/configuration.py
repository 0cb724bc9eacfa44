"""The whole fault configuration: a directory such as the mounted ConfigMap `mindx-dl-fault-config`.

    faultCode.json            absent: the table shipped with taskd
    faultCustomization.json   absent: nothing is counted, everything else has its default
    SwitchFaultCode.json      absent: no fault of a switch is handled
    PollInterval              seconds between two checks, 30 to 3600; absent or unusable: 300

Without a directory: the two files shipped with taskd, which have the vendor's levels and limits, as
newer versions of the device plugin have them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from taskd.mindcluster.faults import codes, customization
from taskd.mindcluster.faults.codes import Codes
from taskd.mindcluster.faults.customization import Customization
from taskd.mindcluster.faults.findings import (
    ERROR,
    MAX_BYTES,
    WARNING,
    Broken,
    Finding,
    Report,
    read_regular,
    shown,
)
from taskd.mindcluster.faults.limits import GUIDE, NEWER

SHIPPED = Path(__file__).parent / "defaults"
POLL_INTERVAL = "PollInterval"
POLL = 300.0  # seconds
READ = {codes.NAME, customization.NAME, codes.SWITCHES, POLL_INTERVAL}
CONFIG_MAP = re.compile(rb"""(^|[\s{,])["']?kind["']?\s*:\s*["']?ConfigMap\b""")
CUT = (
    "is a whole ConfigMap, and not read: put the value of each key of its `data` into a file of"
    " that name, as in a mounted one (kubectl -n kube-system get configmap mindx-dl-fault-config -o"
    " jsonpath='{.data.faultCode\\.json}' > faultCode.json)"
)

Parsed = TypeVar("Parsed")


class ConfigurationRefused(ValueError):
    """The configuration is unusable; `findings` has at least one error."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(str(f) for f in findings if f.severity == ERROR))
        self.findings = findings


@dataclass(frozen=True)
class Configuration:
    codes: Codes = Codes()
    customization: Customization = Customization()
    poll: float = POLL
    findings: tuple[Finding, ...] = ()


def load(directory: str | os.PathLike[str] | None = None, dialect: str = GUIDE) -> Configuration:
    """Load the whole configuration; `dialect`: of faultCustomization.json in a directory, see
    limits.DIALECTS. Raises ConfigurationRefused."""
    dialect = NEWER if directory is None else dialect
    place = SHIPPED if directory is None else Path(directory)
    findings: list[Finding] = []
    if not place.is_dir():
        wanted = "a directory with faultCode.json"
        raise ConfigurationRefused(
            (Finding(ERROR, str(place), "", "is not a directory", allowed=wanted),)
        )
    findings += _unread(place)
    table = _read(place / codes.NAME, codes.parse, findings)
    if table is None:
        table, _ = codes.parse((SHIPPED / codes.NAME).read_bytes())
    switches = _read(place / codes.SWITCHES, codes.parse_switches, findings)
    table = replace(table, table={**table.table, **(switches or {})})
    parse = partial(customization.parse, dialect=dialect)
    rules = _read(place / customization.NAME, parse, findings) or parse(b"{}")[0]

    poll = _poll(place / POLL_INTERVAL, findings)
    if any(f.severity == ERROR for f in findings):
        raise ConfigurationRefused(tuple(findings))
    return Configuration(table, rules, poll, tuple(findings))


def check(path: Path, dialect: str = GUIDE) -> tuple[Finding, ...]:
    """Return the findings of a directory, or of one file. Its name tells which kind it is."""
    findings: list[Finding] = []
    if path.is_dir():
        try:
            return load(path, dialect).findings
        except ConfigurationRefused as error:
            return error.findings
    parsers: dict[str, Callable[[bytes, str], tuple[Any, Report]]] = {
        codes.NAME: codes.parse,
        customization.NAME: partial(customization.parse, dialect=dialect),
        codes.SWITCHES: codes.parse_switches,
    }
    if path.name not in parsers:
        text = CUT if _is_config_map(path) else "its name does not tell what it is"
        return (Finding(ERROR, str(path), "", text, allowed=", ".join(parsers)),)
    if not path.exists():
        return (Finding(ERROR, str(path), "", "does not exist"),)
    _read(path, parsers[path.name], findings, str(path))
    return tuple(findings)


def _unread(place: Path) -> list[Finding]:
    """Files that somebody may have meant to be read."""
    names = [path.name for path in sorted(place.iterdir()) if not path.name.startswith(".")]
    whole = [name for name in names if name not in READ and _is_config_map(place / name)]
    if whole:
        return [Finding(WARNING, name, "", CUT) for name in whole]
    if names and not READ & set(names):
        text = "none of them is read; the tables shipped with taskd are used"
        return [Finding(WARNING, str(place), "", text, shown(names), ", ".join(sorted(READ)))]
    return []


def _is_config_map(path: Path) -> bool:
    try:
        return CONFIG_MAP.search(read_regular(path, MAX_BYTES)) is not None
    except OSError:
        return False


def _read(
    path: Path,
    parse: Callable[[bytes, str], tuple[Parsed, Report]],
    findings: list[Finding],
    name: str = "",
) -> Parsed | None:
    """Parse a file; None if it is absent, or broken: a finding. `name`: of the file there."""
    data = _bytes(path, findings)
    if data is None:
        return None
    try:
        parsed, report = parse(data, name or path.name)
    except Broken as error:
        findings.append(error.finding)
        return None
    findings += report.findings
    return parsed


def _bytes(path: Path, findings: list[Finding]) -> bytes | None:
    try:
        return read_regular(path, MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        findings.append(Finding(ERROR, path.name, "", f"cannot be read: {error.strerror}"))
        return None


def _poll(path: Path, findings: list[Finding]) -> float:
    data = _bytes(path, findings)
    if data is None:
        return POLL
    text = data[:100].decode(errors="replace").strip()
    if text.isascii() and text.isdigit() and len(text) <= 6 and 30 <= int(text) <= 3600:
        return float(text)
    report = Report(path.name)
    report.warn("", f"unusable, {POLL:g} is used", text, "a number of seconds from 30 to 3600")
    findings += report.findings
    return POLL
