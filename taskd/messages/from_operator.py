"""What an operator asks of the manager: `taskd.control`, and the commands that use it. `request`
names whom to answer."""

from __future__ import annotations

from taskd.messages.to_rank import Inject
from taskd.messages.values import Message, Name, Node, Rank, Text


class PauseRequested(Message, frozen=True):
    """Somebody wants all ranks to stop at one step boundary; `request` names whom to answer."""

    request: Name


class ContinueRequested(Message, frozen=True):
    """Paused ranks may go on."""

    request: Name


class RecoverySwitched(Message, frozen=True):
    """An operator has faults repaired from now on, or not (the documented process-recover-enable
    `on` and `interruption`). An incident under way is brought to its end. `request` names whom to
    answer."""

    request: Name
    on: bool


class NodeSubHealthy(Message, frozen=True):
    """`node` still works and should not be relied on; `why` says what is the matter. `request`
    names whom to answer, "" for nobody."""

    request: Name
    node: Node
    why: Text


class ReportCode(Message, frozen=True):
    """Of an operator, or of what watches the devices: `code` on the device of `rank`.
    `kind`: occur, recover or once. `severity`: as the driver told it, or "". `request` names whom
    to answer."""

    request: Name
    rank: Rank
    code: Name
    kind: Name
    severity: Name


class ReleaseDevice(Message, frozen=True):
    """A device that is ManuallySeparateNPU may be used again."""

    request: Name
    device: Text


class StatusAsked(Message, frozen=True):
    """What does the job do?"""

    request: Name


FromOperator = (
    PauseRequested
    | ContinueRequested
    | RecoverySwitched
    | NodeSubHealthy
    | ReportCode
    | ReleaseDevice
    | StatusAsked
    | Inject
)
