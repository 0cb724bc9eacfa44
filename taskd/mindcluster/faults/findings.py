"""Findings in a file of fault codes: the place, its value, and what is allowed."""

from __future__ import annotations

import errno
import json
import os
import reprlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MAX_BYTES = 2 << 20  # the largest ConfigMap has 1 MiB
MOST = 1000  # findings of one file; more are counted
WARNING, ERROR = "warning", "error"


@dataclass(frozen=True)
class Finding:
    """`warning`: an entry is skipped or not read as written. `error`: the file is unusable."""

    severity: str
    file: str
    path: str  # FaultFrequency[2].Times; empty: the file as a whole
    text: str
    value: str = ""  # as in the file, shortened
    allowed: str = ""

    def __str__(self) -> str:
        where = f"{self.file}: {self.path}" if self.path else self.file
        value = f" is {self.value}" if self.value else ""
        allowed = f"; allowed is {self.allowed}" if self.allowed else ""
        return f"{where}{value}: {self.text}{allowed}"


class Broken(ValueError):
    """The file is unusable; `finding` says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


@dataclass
class Report:
    """The findings of one file."""

    file: str
    findings: list[Finding] = field(default_factory=list)

    def warn(self, path: str, text: str, value: object = None, allowed: str = "") -> None:
        if len(self.findings) < MOST:
            self.findings.append(self._finding(WARNING, path, text, value, allowed))
        elif len(self.findings) == MOST:
            more = f"more than {MOST} findings; the rest is omitted"
            self.findings.append(self._finding(WARNING, "", more))

    def broken(self, path: str, text: str, value: object = None, allowed: str = "") -> Broken:
        return Broken(self._finding(ERROR, path, text, value, allowed))

    def _finding(
        self, severity: str, path: str, text: str, value: object = None, allowed: str = ""
    ) -> Finding:
        given = "" if value is None else shown(value)
        return Finding(severity, self.file, path, text, given, allowed)


def shown(value: object) -> str:
    return reprlib.repr(value)


class _Not(ValueError):
    """Not JSON as it is read here: `args` are what `Report.broken` takes."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise _Not(shown(name), "the key occurs twice, and it is not known which one is meant")
        found[name] = value
    return found


def _constant(text: str) -> Any:
    raise _Not("", f"not JSON: {text}")


def read(data: bytes | str, report: Report) -> dict[str, Any]:
    """Return the JSON object in a file or a text. Raises Broken."""
    raw = read_json(data, report)
    if not isinstance(raw, dict):
        raise report.broken("", "a JSON object is expected", raw)
    return raw


def read_json(data: bytes | str, report: Report) -> Any:
    """Return the JSON in a file or a text. Raises Broken."""
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if len(data) > MAX_BYTES:
        raise report.broken("", f"the file has {len(data)} bytes", allowed=f"at most {MAX_BYTES}")
    try:
        return json.loads(
            data.decode("utf-8-sig"), object_pairs_hook=_pairs, parse_constant=_constant
        )
    except UnicodeDecodeError as error:
        raise report.broken("", f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise report.broken(
            "", f"not JSON: {error.msg} in line {error.lineno}, column {error.colno}"
        ) from None
    except _Not as error:
        raise report.broken(*error.args) from None
    # a number of thousands of digits, or brackets nested that deep
    except (ValueError, RecursionError) as error:
        raise report.broken("", f"not JSON that can be read: {type(error).__name__}") from None


def read_regular(path: Path, most: int, newest: bool = False) -> bytes:
    """Read up to `most` bytes of a file, the first or the last. Does not block on what is not a
    regular file (a pipe without a writer). Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if newest and status.st_size > most:
            os.lseek(descriptor, -most, os.SEEK_END)
        parts: list[bytes] = []
        while (left := most - sum(map(len, parts))) > 0 and (
            part := os.read(descriptor, min(left, 1 << 20))
        ):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def unknown(raw: dict[str, Any], known: tuple[str, ...], report: Report, path: str = "") -> None:
    for key in raw:
        if key not in known:
            where = f"{path}.{key}" if path else key
            report.warn(
                where if len(where) <= 200 else where[:200] + "...",
                "the key is unknown and ignored",
                allowed=", ".join(known),
            )


def entries(raw: Any, path: str, report: Report) -> Iterator[tuple[str, Any]]:
    """The items of a list, each with its path. Anything but a list is skipped with a warning."""
    if not isinstance(raw, list):
        report.warn(path, "a list is expected; skipped", raw)
        return
    for number, item in enumerate(raw):
        yield f"{path}[{number}]", item


def whole(raw: Any, lowest: int, highest: int) -> int | None:
    """The whole number, if it is in the range. 30.0 counts, as JSON tools may write it; true does
    not."""
    if isinstance(raw, float) and raw.is_integer():
        raw = int(raw)
    return raw if type(raw) is int and lowest <= raw <= highest else None
