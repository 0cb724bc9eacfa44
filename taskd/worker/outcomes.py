"""How a rank's wait for orders ends."""

from __future__ import annotations

from dataclasses import dataclass

from taskd.messages.values import Plan
from taskd.worker.entry import Entry


@dataclass(frozen=True)
class Resumed:
    """Train on from `step`. `entry`: what was recorded for it, None at the very start; `kind`: of
    the record; `plan`: by which it was restored."""

    step: int
    entry: Entry | None
    kind: int
    plan: Plan | None = None


@dataclass(frozen=True)
class Released:
    step: int


@dataclass(frozen=True)
class Continued:
    """A pause has ended, or its boundary has moved."""


@dataclass(frozen=True)
class TakenUp:
    """A replacement that was started before it was needed: the records that it comes back from are
    there now."""


@dataclass(frozen=True)
class LeftAlone:
    reason: str


Outcome = Resumed | Released | LeftAlone | Continued | TakenUp
