"""Fault levels of devices, and what each asks of a training job: one table.

The words are those of `faultCode.json` and `faultCustomization.json`. When several hold of a
device, the one that stands last here is its level. What is *asked* is another order: PreSeparateNPU
leaves a device its process, and must not hide that another code takes the process from it. So what
has happened and what the device is now are told apart: the first is answered, the second says where
a process may be started.

Nothing here knows which code has which level: that is `taskd.mindcluster.faults`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from taskd.core.demand import RUNGS, Demand
from taskd.core.events import DeviceLevel


class Level(IntEnum):
    """In ascending order of precedence."""

    NORMAL = 0
    NOT_HANDLE = 1
    SUB_HEALTH = 2
    RESTART_REQUEST = 3
    RESTART_BUSINESS = 4
    FREE_RESTART = 5
    RESTART = 6
    PRE_SEPARATE = 7
    SEPARATE = 8
    MANUALLY_SEPARATE = 9

    @property
    def word(self) -> str:
        """As the documents call it."""
        return WORDS[self]


WORDS = {
    Level.NORMAL: "Normal",
    Level.NOT_HANDLE: "NotHandleFault",
    Level.SUB_HEALTH: "SubHealthFault",
    Level.RESTART_REQUEST: "RestartRequest",
    Level.RESTART_BUSINESS: "RestartBusiness",
    Level.FREE_RESTART: "FreeRestartNPU",
    Level.RESTART: "RestartNPU",
    Level.PRE_SEPARATE: "PreSeparateNPU",
    Level.SEPARATE: "SeparateNPU",
    Level.MANUALLY_SEPARATE: "ManuallySeparateNPU",
}
NAMED = {word: level for level, word in WORDS.items()}
NUMBERS = {  # L1 to L6 of the documents
    Level.NOT_HANDLE: "L1",
    Level.RESTART_REQUEST: "L2",
    Level.RESTART_BUSINESS: "L3",
    Level.FREE_RESTART: "L4",
    Level.RESTART: "L5",
    Level.SEPARATE: "L6",
}


@dataclass(frozen=True)
class Rule:
    asks: Demand
    usable: bool  # a process may be started on a device of this level
    why: str

    @property
    def rungs(self) -> tuple[str, ...]:
        return RUNGS.get(self.asks, ())


TABLE: dict[Level, Rule] = {
    Level.NORMAL: Rule(Demand.NOTHING, True, "there is no fault"),
    Level.NOT_HANDLE: Rule(Demand.NOTHING, True, "training is not affected"),
    Level.SUB_HEALTH: Rule(
        Demand.MOVE_NODE,
        True,
        "the device works and should not be relied on: subHealthyStrategy decides",
    ),
    Level.RESTART_REQUEST: Rule(
        Demand.RETRY, True, "the step under way is in doubt: it is repeated"
    ),
    Level.RESTART_BUSINESS: Rule(
        Demand.RETRY, True, "the step under way is in doubt: it is repeated"
    ),
    Level.FREE_RESTART: Rule(
        Demand.REPLACE_RANK, True, "the device will be reset, which no process on it survives"
    ),
    Level.RESTART: Rule(
        Demand.REPLACE_RANK, True, "the device is reset, which no process on it survives"
    ),
    Level.PRE_SEPARATE: Rule(
        Demand.WAIT, False, "the device is left to the process that it has; it gets no other one"
    ),
    Level.SEPARATE: Rule(Demand.REPLACE_NODE, False, "the device cannot be used any more"),
    Level.MANUALLY_SEPARATE: Rule(
        Demand.REPLACE_NODE, False, "the device is not used until somebody has released it"
    ),
}


def stronger(one: Level, other: Level) -> Level:
    """Of two levels that hold at once, the one that asks for more; of two that ask for the same,
    the one of higher precedence."""
    order = list(Demand)
    return max(one, other, key=lambda level: (order.index(TABLE[level].asks), level))


def event(
    rank: int, level: Level | None, text: str, unusable: str, request: str = ""
) -> DeviceLevel:
    """For `core`: something of `level` has arisen on the device of `rank`, None for nothing new;
    `text`, `unusable` and `request` as there."""
    if level is None:
        return DeviceLevel(request, rank, text, unusable=unusable)
    rule = TABLE[level]
    return DeviceLevel(request, rank, text, level.word, rule.asks, rule.usable, rule.why, unusable)
