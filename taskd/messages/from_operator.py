"""Requests from an operator to the manager: `taskd.control` and the commands that use it.

`request` identifies the request in its Answer."""

from __future__ import annotations

from taskd.messages.to_rank import Inject, Ranges
from taskd.messages.values import Count, Message, Name, Node, Ops, Rank, Text


class PauseRequested(Message, frozen=True):
    """Stop all ranks at the same step boundary."""

    request: Name


class ContinueRequested(Message, frozen=True):
    """Let paused ranks continue."""

    request: Name


class RecoverySwitched(Message, frozen=True):
    """Turn the repair of faults on or off (the documented process-recover-enable `on` and
    `interruption`). An incident under way is finished as it began."""

    request: Name
    on: bool


class SaveRequested(Message, frozen=True):
    """Save the job's state, at a step boundary; then the ranks go on, or with `end` the job
    ends."""

    request: Name
    end: bool


class NodeSubHealthy(Message, frozen=True):
    """`node` still works but is unreliable, because of `why`. `request`: "" for no answer."""

    request: Name
    node: Node
    why: Text


class NicSwitchRequested(Message, frozen=True):
    """Pause all ranks and move the links of `ranks` to their backup network card, or with False in
    `backup` back to the main one."""

    request: Name
    ranks: tuple[Rank, ...]
    backup: tuple[bool, ...]


class StressTestRequested(Message, frozen=True):
    """Pause all ranks and have `ranks`, or all if there are none, test their devices: `ops` as in
    to_rank.StressTest."""

    request: Name
    ranks: tuple[Rank, ...]
    ops: Ops


class ReportCode(Message, frozen=True):
    """An operator or device monitor reports fault `code` on the device of `rank`. `kind`: occur,
    recover or once. `severity`: as reported by the driver, or ""."""

    request: Name
    rank: Rank
    code: Name
    kind: Name
    severity: Name


class ReleaseDevice(Message, frozen=True):
    """Allow a ManuallySeparateNPU device to be used again."""

    request: Name
    device: Text


class ProfileRequested(Message, frozen=True):
    """Profile these ranges (numbers of to_rank.RANGES); none: stop profiling."""

    request: Name
    ranges: Ranges


class StatusAsked(Message, frozen=True):
    """Ask for the status of the job."""

    request: Name


class OverviewAsked(Message, frozen=True):
    """Ask for the status of the job as data: a to_operator.Overview."""

    request: Name


class RanksAsked(Message, frozen=True):
    """Ask for the states of `count` ranks, at most to_operator.PAGE, from `first` on."""

    request: Name
    first: Rank
    count: Count


FromOperator = (
    PauseRequested
    | ContinueRequested
    | RecoverySwitched
    | SaveRequested
    | NodeSubHealthy
    | NicSwitchRequested
    | StressTestRequested
    | ReportCode
    | ReleaseDevice
    | ProfileRequested
    | StatusAsked
    | OverviewAsked
    | RanksAsked
    | Inject
)
