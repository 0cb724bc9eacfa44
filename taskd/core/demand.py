"""What a device fault demands of a training job; `taskd.mindcluster.levels` maps faults to demands.

A demand is the least that helps; the ladder combines it with the configuration and other damage,
and climbs when it does not help.
"""

from __future__ import annotations

from enum import Enum


class Demand(Enum):
    """Demands, in ascending order of cost."""

    NOTHING = "nothing"
    WAIT = "wait"
    MOVE_NODE = "hot switch"
    RETRY = "retry"
    REPLACE_RANK = "replace the rank"
    REPLACE_NODE = "replace the node"


# strategies that meet a demand; the first that is configured and fits is used
RUNGS: dict[Demand, tuple[str, ...]] = {
    Demand.RETRY: ("retry", "recover-in-place", "recover", "dump", "exit"),
    Demand.REPLACE_RANK: ("recover-in-place", "recover", "dump", "exit"),
    Demand.REPLACE_NODE: ("recover", "dump", "exit"),
}
