"""Messages from a rank to its agent, which relays nearly all of them unchanged to the manager.

`incarnation` numbers the processes that have run as a rank: 0 is the one that the launcher started,
+1 for each replacement. A message from any other incarnation than the current one is ignored.
"""

from __future__ import annotations

from taskd.messages.values import (
    Count,
    Dumps,
    File,
    Load,
    Message,
    Name,
    Number,
    PageAddress,
    Position,
    Rank,
    ReplicaGroups,
    Results,
    Seconds,
    Step,
    StepOrNone,
    Text,
)

MEMORY, OTHER, NETWORK = 0, 1, 2
FAULTS = ("on-chip memory", "other", "network")  # the documented fault types, by number


class RankHello(Message, frozen=True):
    """The first message from a rank to its agent. `device`: as torch names it; "": a CPU, or not
    known."""

    rank: Rank
    incarnation: Number
    pid: Number
    device: Name = ""


class ControlHello(Message, frozen=True):
    """The first message on a rank's second connection to its agent, served by a thread while the
    rank trains."""

    rank: Rank
    incarnation: Number


class RankJoined(Message, frozen=True):
    """The rank's script has called protect(). `handlers`: instead, its framework repairs itself by
    handlers that it has registered (taskd.adaptor.mindio). `dumps`: those that it could begin
    from."""

    rank: Rank
    incarnation: Number = 0
    handlers: bool = False
    dumps: Dumps = ()


class OptimizerReplicas(Message, frozen=True):
    """The rank's framework has reported which ranks have the same optimizer state. `loads`: it can
    load a checkpoint in running processes."""

    rank: Rank
    incarnation: Number
    groups: ReplicaGroups
    loads: bool = False


class StrategyRequested(Message, frozen=True):
    """A program in the rank's process, which decides about repairs through the framework's
    callbacks, has chosen `strategy`: dump or exit."""

    rank: Rank
    incarnation: Number
    strategy: Name


class RankRaised(Message, frozen=True):
    """An exception has left the rank's attempt, so its process will most likely exit. `text`
    identifies the exception. `refused`: taskd raised it, since continuing would give other numbers:
    the job ends. `unwanted`: a setting asks for that, so each start would end like this one."""

    rank: Rank
    incarnation: Number
    step: Step
    text: Text
    refused: bool = False
    unwanted: bool = False


class NotProtected(Message, frozen=True):
    """The rank has met, in its loop, what cannot be restored (`reason`): from now on it trains
    without protection, and with it the job."""

    rank: Rank
    incarnation: Number
    step: Step
    reason: Text


class CollectiveFailed(Message, frozen=True):
    """A living rank's communicator failed for a reason unknown to the rank, which waits for
    orders."""

    rank: Rank
    incarnation: Number
    step: Step
    text: Text


class RankFaulted(Message, frozen=True):
    """A living rank's device, memory or link has failed, as detected by the rank or its agent; the
    rank waits for orders.

    `fault`: a documented fault type, as an index into FAULTS. `page`: address of the failed memory
    page, 0 for none. `load`: no rank's state is right any more.
    """

    rank: Rank
    incarnation: Number
    step: Step
    fault: Number
    text: Text
    page: PageAddress = 0
    load: Load | None = None


class RankInterrupted(Message, frozen=True):
    """The rank has left its collectives for interruption number `interruption` and waits for
    orders. `unfit`: why its process cannot continue. `idle`, filled in by its agent: for how many
    seconds it had made no progress when it was interrupted, longer than a step usually takes; 0: it
    was at work. None: it waited where ranks wait."""

    rank: Rank
    incarnation: Number
    interruption: Number
    position: Position
    unfit: Name = ""
    idle: Seconds | None = None


class RankReady(Message, frozen=True):
    """A replacement has run its script up to the first attempt and waits for orders."""

    rank: Rank
    incarnation: Number


class RankRebuilt(Message, frozen=True):
    rank: Rank
    incarnation: Number
    generation: Number


class RankRestored(Message, frozen=True):
    """The rank's replicated and private state are in place; `digest` is the checksum of the
    replicated state, equal in its replica set. `loaded`: the step of the checkpoint that its
    framework has loaded, -1 for none."""

    rank: Rank
    incarnation: Number
    generation: Number
    digest: Name
    loaded: StepOrNone = -1


class RankFailed(Message, frozen=True):
    """A living rank could not carry out an order in `generation`; it has left its collectives and
    waits."""

    rank: Rank
    incarnation: Number
    generation: Number
    reason: Text


class RankPosition(Message, frozen=True):
    """The position of a paused rank, see to_rank.AskPosition. `copies`: it has room for a copy of
    its state, so it can save the state while it trains."""

    rank: Rank
    incarnation: Number
    dump: Number
    position: Position
    copies: bool = False


class StateSaved(Message, frozen=True):
    """The rank has written its part of the dump: `files` are (name, size, checksum); none if it was
    ordered to record or copy its state. `why`: it could not, beside training; in an incident it
    sends RankFailed. `dump`: see to_rank.AskPosition."""

    rank: Rank
    incarnation: Number
    interruption: Number
    files: tuple[File, ...]
    why: Text = ""
    dump: Number = 0


class SaveEstimate(Message, frozen=True):
    """Saving the job's state takes about `seconds`, by the speed of the dump's directory."""

    rank: Rank
    incarnation: Number
    seconds: Seconds


class StepCommitted(Message, frozen=True):
    """The first step after a resume is committed on this rank."""

    rank: Rank
    incarnation: Number
    generation: Number
    step: Step


class RankFinished(Message, frozen=True):
    """The rank's loop over steps or batches has ended before `step`; it waits for the others and
    can still be rolled back."""

    rank: Rank
    incarnation: Number
    step: Step


class RankPaused(Message, frozen=True):
    """The rank has stopped before `step`, as ordered by Pause."""

    rank: Rank
    incarnation: Number
    step: Step


class RankPassed(Message, frozen=True):
    """The rank had already begun `step` when Pause ordered it to stop before that step."""

    rank: Rank
    incarnation: Number
    step: Step


# codes of results, as ClusterD has them: the last two are that a test did not end, and that the
# device's voltage was not put back
WELL, NOT_DONE, FAULTY, TOO_LONG, VOLTAGE = range(5)


class TaskDone(Message, frozen=True):
    """The results of task `task` on this rank, each the number of the test (0 for a switch of
    network cards), its code (WELL to VOLTAGE) and a text."""

    rank: Rank
    incarnation: Number
    task: Number
    results: Results


class StepTimes(Message, frozen=True):
    """Recent progress of a profiled rank: it committed the `steps` steps up to `step` in `taken`
    seconds, of which it waited `waited` for other ranks."""

    rank: Rank
    incarnation: Number
    step: Step
    steps: Count
    taken: Seconds
    waited: Seconds


class StepsPlanned(Message, frozen=True):
    """The rank's loop ends before step `total`. Its agent includes this in its heartbeats."""

    rank: Rank
    incarnation: Number
    total: Step


class GroupReady(Message, frozen=True):
    """The rank's process group exists: MindSpore's `init()` has returned. The rank waits for
    GroupsReady."""

    rank: Rank
    incarnation: Number


class Injected(Message, frozen=True):
    """The result of an Inject."""

    request: Name
    rank: Rank
    ok: bool
    text: Text


class Progress(Message, frozen=True):
    """The answer to progress probe `call`: `collectives` begun in this attempt, CPU seconds used so
    far."""

    rank: Rank
    incarnation: Number
    call: Number
    step: Step
    collectives: Count
    cpu: Seconds


Hello = RankHello | ControlHello  # the first message on a connection
FromRank = (
    RankJoined
    | OptimizerReplicas
    | StrategyRequested
    | RankRaised
    | NotProtected
    | CollectiveFailed
    | RankFaulted
    | RankInterrupted
    | RankReady
    | RankRebuilt
    | RankRestored
    | RankFailed
    | RankPosition
    | StateSaved
    | SaveEstimate
    | StepCommitted
    | RankFinished
    | RankPaused
    | RankPassed
    | TaskDone
    | StepTimes
    | StepsPlanned
    | GroupReady
    | Injected
    | Progress
)
