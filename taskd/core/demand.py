"""What the fault of a device asks of a training job. Which fault asks for what is not known here:
see `taskd.mindcluster.levels`.

A demand is for the least that helps; the ladder joins that with what is configured and with what is
broken besides, and climbs when it does not help.
"""

from __future__ import annotations

from enum import Enum


class Demand(Enum):
    """In ascending order of what it costs."""

    NOTHING = "nothing"
    WAIT = "wait"
    MOVE_NODE = "hot switch"
    RETRY = "retry"
    REPLACE_RANK = "replace the rank"
    REPLACE_NODE = "replace the node"


# strategies that meet it; of those that are configured the first one that fits
RUNGS: dict[Demand, tuple[str, ...]] = {
    Demand.RETRY: ("retry", "recover-in-place", "recover", "dump", "exit"),
    Demand.REPLACE_RANK: ("recover-in-place", "recover", "dump", "exit"),
    Demand.REPLACE_NODE: ("recover", "dump", "exit"),
}
