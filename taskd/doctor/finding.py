"""What a check returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The result of a check. `error`: a job will not run, or not be protected. `warning`: it will,
    but with less than it could have. Both have a remedy."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "warning", found, remedy)


def error(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "error", found, remedy)
