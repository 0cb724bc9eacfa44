"""What `faultCustomization.json` may say: one table of its fields, with the limits of the guide
(seed 004) and of newer versions of the device plugin. A field that one of them lacks has no limits
there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from taskd.mindcluster.faults.codes import LINK_DOWN
from taskd.mindcluster.faults.findings import whole
from taskd.mindcluster.levels import NAMED, Level

GUIDE, NEWER = DIALECTS = ("guide", "newer")  # for TASKD_FAULT_TABLE
HINT = "newer versions of the device plugin allow it: TASKD_FAULT_TABLE=newer"
LONGEST = 2**32  # seconds; what newer versions write for "never"


class Number(NamedTuple):
    """`default`: None if the field must be there. `zero`: 0 is allowed, too."""

    lowest: int
    highest: int
    default: int | None = None
    unit: str = "seconds"
    zero: bool = False

    def read(self, raw: Any) -> int | None:
        """The value, None if it is not allowed."""
        value = whole(raw, self.lowest, self.highest)
        return whole(raw, 0, 0) if value is None and self.zero else value

    def __str__(self) -> str:
        zero = ", or 0" if self.zero else ""
        return f"a number of {self.unit} from {self.lowest} to {self.highest}{zero}"


class Word(NamedTuple):
    """The word of one of these levels."""

    allowed: Mapping[str, Level]
    default: Level | None = None

    def read(self, raw: Any) -> Level | None:
        """The level, None if it is not allowed."""
        return self.allowed.get(raw) if isinstance(raw, str) else None

    def __str__(self) -> str:
        return ", ".join(self.allowed)


Limit = Number | Word
_ALL = {word: level for word, level in NAMED.items() if level is not Level.NORMAL}


def _but(level: Level) -> dict[str, Level]:
    return {word: each for word, each in _ALL.items() if each is not level}


_PRE_SEPARATE = Level.PRE_SEPARATE
# section -> field -> dialect -> what it may be
TABLE: Mapping[str, Mapping[str, Mapping[str, Limit]]] = {
    "GraceTolerance": {
        "WaitFlushingCMTime": {GUIDE: Number(90, 300, 90)},
        "WaitProcessReadCMTime": {NEWER: Number(5, 90, 30)},
        "WaitDeviceResetTime": {GUIDE: Number(60, 120, 60), NEWER: Number(60, 180, 150)},
        "WaitFaultSelfHealingTime": {NEWER: Number(1, 30, 15)},
    },
    "FaultFrequency": {
        "TimeWindow": dict.fromkeys(DIALECTS, Number(60, 864_000)),
        "Times": {
            GUIDE: Number(2, 100, unit="occurrences"),
            NEWER: Number(1, 100, unit="occurrences"),
        },
        "FaultHandling": {GUIDE: Word(_but(Level.SUB_HEALTH)), NEWER: Word(_ALL)},
        "ReleaseTimeWindow": {NEWER: Number(60, LONGEST, 0, zero=True)},
    },
    "FaultDuration": {
        # the guide's default is a setting of the device plugin; 20 is in the vendor's own file
        "FaultTimeout": {GUIDE: Number(1, 30, 20), NEWER: Number(0, 600, 20)},
        "RecoverTimeout": {GUIDE: Number(1, 60, 60), NEWER: Number(0, 86_400, 60)},
        "FaultHandling": {
            GUIDE: Word({_PRE_SEPARATE.word: _PRE_SEPARATE}, _PRE_SEPARATE),
            NEWER: Word(_but(Level.MANUALLY_SEPARATE), _PRE_SEPARATE),
        },
    },
}
# the codes of FaultDuration; besides the guide's, two for which newer guides show an entry: a link
# between super-pods, and failing memory
DURABLE = {GUIDE: {LINK_DOWN}, NEWER: {LINK_DOWN, "81B18603", "80E01801"}}
