"""What a rank says to its agent. Nearly all of it goes on to the manager, as it is.

`incarnation` numbers the processes that have paused a rank: 0 is the one the launcher started, +1
for each replacement. A message of another incarnation than the present one is late and changes
nothing.
"""

from __future__ import annotations

from taskd.messages.values import (
    Count,
    File,
    Message,
    Name,
    Number,
    PageAddress,
    Position,
    Rank,
    Seconds,
    Step,
    Text,
)

MEMORY, OTHER, NETWORK = 0, 1, 2
FAULTS = ("on-chip memory", "other", "network")  # the documented fault types, by number


class RankHello(Message, frozen=True):
    """First message of a rank to its agent."""

    rank: Rank
    incarnation: Number
    pid: Number


class ControlHello(Message, frozen=True):
    """First message on a rank's second line to its agent, which a thread attends to while the rank
    trains."""

    rank: Rank
    incarnation: Number


class RankJoined(Message, frozen=True):
    """The rank's script called protect()."""

    rank: Rank
    incarnation: Number = 0


class RankRaised(Message, frozen=True):
    """An exception is leaving the rank's attempt: the process will most likely end. `text`
    identifies it."""

    rank: Rank
    incarnation: Number
    step: Step
    text: Text


class CollectiveFailed(Message, frozen=True):
    """A living rank's communicator failed and nothing has told the rank why; it waits for
    orders."""

    rank: Rank
    incarnation: Number
    step: Step
    text: Text


class RankFaulted(Message, frozen=True):
    """A living rank's device, memory or link is at fault and the rank, or its agent, knows which;
    the rank waits for orders.

    `fault`: one of the documented fault types, an index into FAULTS. `page`: address of the memory
    page, 0 where there is none.
    """

    rank: Rank
    incarnation: Number
    step: Step
    fault: Number
    text: Text
    page: PageAddress = 0


class RankInterrupted(Message, frozen=True):
    """The rank has left its collectives for interruption number `interruption` and waits for
    orders. `unfit`: why its process cannot go on."""

    rank: Rank
    incarnation: Number
    interruption: Number
    position: Position
    unfit: Name = ""


class RankReady(Message, frozen=True):
    """A replacement has run its script up to the first attempt and waits for orders."""

    rank: Rank
    incarnation: Number


class RankRebuilt(Message, frozen=True):
    rank: Rank
    incarnation: Number
    generation: Number


class RankRestored(Message, frozen=True):
    """State and private entry are in place; `digest` is the checksum of the shard, equal on all of
    its replicas."""

    rank: Rank
    incarnation: Number
    generation: Number
    digest: Name


class RankFailed(Message, frozen=True):
    """A living rank could not do what it was told in `generation`; it has left its collectives and
    waits."""

    rank: Rank
    incarnation: Number
    generation: Number
    reason: Text


class StateSaved(Message, frozen=True):
    """The rank has written its part of the dump: `files` are (name, bytes, checksum)."""

    rank: Rank
    incarnation: Number
    interruption: Number
    files: tuple[File, ...]


class StepCommitted(Message, frozen=True):
    """The first step after a resume is committed on this rank."""

    rank: Rank
    incarnation: Number
    generation: Number
    step: Step


class RankFinished(Message, frozen=True):
    """The rank's loop over steps or batches is over before `step`; it waits for the others, still
    able to be taken back."""

    rank: Rank
    incarnation: Number
    step: Step


class RankPaused(Message, frozen=True):
    """The rank has stopped before `step`, as it was told to."""

    rank: Rank
    incarnation: Number
    step: Step


class RankPassed(Message, frozen=True):
    """The rank had begun `step` when it was told to stop before it."""

    rank: Rank
    incarnation: Number
    step: Step


class Injected(Message, frozen=True):
    """What came of an Inject."""

    request: Name
    rank: Rank
    ok: bool
    text: Text


class Progress(Message, frozen=True):
    """The answer to progress probe `call`. `collectives` begun in this attempt, `cpu` seconds used
    so far."""

    rank: Rank
    incarnation: Number
    call: Number
    step: Step
    collectives: Count
    cpu: Seconds


Hello = RankHello | ControlHello  # the first message on a line
FromRank = (
    RankJoined
    | RankRaised
    | CollectiveFailed
    | RankFaulted
    | RankInterrupted
    | RankReady
    | RankRebuilt
    | RankRestored
    | RankFailed
    | StateSaved
    | StepCommitted
    | RankFinished
    | RankPaused
    | RankPassed
    | Injected
    | Progress
)
