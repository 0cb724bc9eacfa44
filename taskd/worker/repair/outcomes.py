"""The ways in which a rank's wait for orders ends."""

from __future__ import annotations

from dataclasses import dataclass

from taskd.messages.values import Plan
from taskd.worker.state.entry import Entry


@dataclass(frozen=True)
class Resumed:
    """Resume at `step`. `entry`: its record, None at the very start; `kind`: the record's kind;
    `plan`: the plan of the restore."""

    step: int
    entry: Entry | None
    kind: int
    plan: Plan | None = None


@dataclass(frozen=True)
class Released:
    step: int


@dataclass(frozen=True)
class Continued:
    """A pause has ended or its boundary has moved."""


@dataclass(frozen=True)
class TakenUp:
    """The records for a replacement that was started ahead of need have arrived."""


@dataclass(frozen=True)
class LeftAlone:
    reason: str


Outcome = Resumed | Released | LeftAlone | Continued | TakenUp
