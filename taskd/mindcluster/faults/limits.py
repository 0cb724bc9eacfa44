"""What `faultCustomization.json` may say: by the guide (seed 004), and by newer versions of the
device plugin, which have other names, ranges and defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.mindcluster.faults.codes import LINK_DOWN
from taskd.mindcluster.levels import NAMED, Level

Range = tuple[int, int]
WithDefault = tuple[int, int, int]  # lowest, highest, default

_ALL = {word: level for word, level in NAMED.items() if level is not Level.NORMAL}


@dataclass(frozen=True)
class Limits:
    name: str  # for TASKD_FAULT_TABLE
    grace: Mapping[str, WithDefault]  # of GraceTolerance, in seconds
    times: Range  # FaultFrequency[].Times
    release: bool  # FaultFrequency[].ReleaseTimeWindow exists
    counted: Mapping[str, Level]  # FaultFrequency[].FaultHandling
    durable: frozenset[int]  # the codes of FaultDuration
    timeout: WithDefault  # FaultDuration[].FaultTimeout, in seconds
    recover: WithDefault
    lasting: Mapping[str, Level]  # FaultDuration[].FaultHandling


GUIDE = Limits(
    name="guide",
    grace={"WaitFlushingCMTime": (90, 300, 90), "WaitDeviceResetTime": (60, 120, 60)},
    times=(2, 100),
    release=False,
    counted={word: level for word, level in _ALL.items() if level is not Level.SUB_HEALTH},
    durable=frozenset({LINK_DOWN}),
    # the guide's default is a setting of the device plugin; 20 is in the vendor's own file
    timeout=(1, 30, 20),
    recover=(1, 60, 60),
    lasting={"PreSeparateNPU": Level.PRE_SEPARATE},
)
NEWER = Limits(
    name="newer",
    grace={
        "WaitProcessReadCMTime": (5, 90, 30),
        "WaitDeviceResetTime": (60, 180, 150),
        "WaitFaultSelfHealingTime": (1, 30, 15),
    },
    times=(1, 100),
    release=True,
    counted=_ALL,
    # besides the guide's, two for which newer guides show an entry: a link between super-pods, and
    # failing memory
    durable=frozenset({LINK_DOWN, 0x81B18603, 0x80E01801}),
    timeout=(0, 600, 20),
    recover=(0, 86_400, 60),
    lasting={w: level for w, level in _ALL.items() if level is not Level.MANUALLY_SEPARATE},
)
LIMITS = {limits.name: limits for limits in (GUIDE, NEWER)}
HINT = "newer versions of the device plugin allow it: TASKD_FAULT_TABLE=newer"
