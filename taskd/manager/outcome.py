"""How a manager ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """How the manager ended; `ok` is None if it left while the job went on."""

    ok: bool | None
    reason: str
