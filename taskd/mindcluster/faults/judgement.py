"""What holds for a device: its reasons, and the level that they give it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from taskd.mindcluster.faults.customization import Frequency
from taskd.mindcluster.faults.names import show
from taskd.mindcluster.levels import TABLE, Level


@dataclass(frozen=True)
class Reason:
    level: Level
    text: str


@dataclass(frozen=True)
class Judgement:
    """A device's level now."""

    level: Level = Level.NORMAL
    text: str = ""  # the rule that set it
    unusable: str = ""  # why no process may start on the device; "": one may
    resetting: str = ""  # why none may before it has been reset


@dataclass(frozen=True)
class Arisen:
    """A new reason on `device`, the one that asks for most, and the device's level now."""

    device: str
    reason: Reason
    now: Judgement


@dataclass(frozen=True)
class Separation:
    """Why a device is not used until an operator releases it. `until`: when it is released anyway
    (ReleaseTimeWindow); None: never by time."""

    text: str
    code: int
    until: float | None = None


@dataclass(frozen=True)
class Mark:
    """What device-info says of a device besides its codes: why it is not used until its name is
    deleted there, and why it is being reset; "": neither."""

    separated: str = ""
    recovering: str = ""


def judgement(reasons: Iterable[Reason], resetting: str) -> Judgement:
    best = max(reasons, key=lambda reason: reason.level, default=Reason(Level.NORMAL, ""))
    # the levels that allow no process are the highest ones
    unusable = "" if TABLE[best.level].usable else f"{best.level.word}: {best.text}"
    return Judgement(best.level, best.text, unusable, resetting)


def often(code: int, rule: Frequency) -> str:
    return f"{show(code)} occurred {rule.times} times within {rule.window:g} s ({rule.path})"
