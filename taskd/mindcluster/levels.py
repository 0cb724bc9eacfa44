"""Fault levels of devices, and what each asks of a training job: one table.

The words are those of `faultCode.json` and `faultCustomization.json`. If several levels apply to a
device, the last one here is its level. What a level *asks* is another order: PreSeparateNPU leaves
a device its process, and must not hide that another code costs the process. So an event and a
device's state are kept apart: the first is answered, the second decides where a process may start.

`taskd.mindcluster.faults` knows which code has which level; this module does not.
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
        """The documents' name for it."""
        return TABLE[self].word


# While a code of such a level is present, the device is being reset, or waits for it.
RESETS = frozenset({Level.FREE_RESTART, Level.RESTART})


@dataclass(frozen=True)
class Rule:
    """`number`: L1 to L6 of the documents, "" if it has none. `usable`: a process may start on a
    device of this level."""

    word: str
    number: str
    asks: Demand
    usable: bool
    why: str

    @property
    def rungs(self) -> tuple[str, ...]:
        return RUNGS.get(self.asks, ())


_DOUBT = "the step under way is in doubt: it is repeated"
TABLE: dict[Level, Rule] = {
    Level.NORMAL: Rule("Normal", "", Demand.NOTHING, True, "there is no fault"),
    Level.NOT_HANDLE: Rule(
        "NotHandleFault", "L1", Demand.NOTHING, True, "training is not affected"
    ),
    Level.SUB_HEALTH: Rule(
        "SubHealthFault",
        "",
        Demand.MOVE_NODE,
        True,
        "the device works but should not be relied on: subHealthyStrategy decides",
    ),
    Level.RESTART_REQUEST: Rule("RestartRequest", "L2", Demand.RETRY, True, _DOUBT),
    Level.RESTART_BUSINESS: Rule("RestartBusiness", "L3", Demand.RETRY, True, _DOUBT),
    Level.FREE_RESTART: Rule(
        "FreeRestartNPU",
        "L4",
        Demand.REPLACE_RANK,
        True,
        "the device will be reset, which no process on it survives",
    ),
    Level.RESTART: Rule(
        "RestartNPU",
        "L5",
        Demand.REPLACE_RANK,
        True,
        "the device is reset, which no process on it survives",
    ),
    Level.PRE_SEPARATE: Rule(
        "PreSeparateNPU",
        "",
        Demand.WAIT,
        False,
        "the device keeps its process and gets no other one",
    ),
    Level.SEPARATE: Rule(
        "SeparateNPU", "L6", Demand.REPLACE_NODE, False, "the device can no longer be used"
    ),
    Level.MANUALLY_SEPARATE: Rule(
        "ManuallySeparateNPU",
        "",
        Demand.REPLACE_NODE,
        False,
        "the device is not used until an operator releases it",
    ),
}
NAMED = {rule.word: level for level, rule in TABLE.items()}


def stronger(one: Level, other: Level) -> Level:
    """Of two levels that apply at once, return the one that asks for more; if they ask for the
    same, the one of higher precedence."""
    order = list(Demand)
    return max(one, other, key=lambda level: (order.index(TABLE[level].asks), level))


def event(
    rank: int,
    level: Level | None,
    text: str,
    unusable: str,
    resetting: str = "",
    request: str = "",
) -> DeviceLevel:
    """The event for `core`: a reason of `level` has arisen on the device of `rank`; None: nothing
    new. The others as in DeviceLevel."""
    if level is None:
        return DeviceLevel(request, rank, text, unusable=unusable, resetting=resetting)
    rule = TABLE[level]
    return DeviceLevel(
        request, rank, text, level.word, rule.asks, rule.usable, rule.why, unusable, resetting
    )
