"""Messages from an agent to the manager, besides those it relays from its ranks.

The first one, AgentJoined or StandbyJoined, holds its state for a manager that takes over."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskd.messages import from_rank
from taskd.messages.node_progress import NodeProgress
from taskd.messages.to_agent import Ack, Ending
from taskd.messages.to_rank import Ranges
from taskd.messages.values import (
    ROOM,
    About,
    Address,
    Count,
    DeviceState,
    Dumps,
    FaultCount,
    File,
    HostName,
    Keepers,
    Left,
    Message,
    Name,
    Node,
    NodeOrNone,
    NodeOrStandby,
    Number,
    Numbers,
    Position,
    Preparation,
    Rank,
    Ranks,
    Seconds,
    Stamp,
    StandIns,
    Step,
    StepOrNone,
    Text,
    Voting,
)


class Heartbeat(Message, frozen=True, omit_defaults=True):
    """Shows that the agent is alive; numbered by the envelope's `seq`. `unheard`: how many of its
    messages are not acknowledged; the manager then sends an Ack. `asked`: it answers that
    TimeAsked, 0 for none. `progress`: None where there are no ranks."""

    ranks_alive: Count
    unheard: Count = 0
    asked: Seconds = 0.0
    progress: NodeProgress | None = None


class VoterState(Message, frozen=True):
    """The agent's voting state, sent to each manager it connects to: the last term and manager that
    it acknowledged, its newest roster (`members`, see RosterIs, is empty where it has only the
    stamp), and whether it has a manager (`content`)."""

    term: Number
    manager: Name
    stamp: Stamp
    members: dict[Name, Voting]
    content: bool


class Vote(Message, frozen=True):
    """Grants or denies the claim of `term`."""

    term: Number
    granted: bool


class RosterKept(Message, frozen=True):
    stamp: Stamp


class Arrived(Message, frozen=True):
    """A launcher for `node` (-1: not known) asks whether the job is under way. `rendezvous`: where
    the launchers meet, if it knows that."""

    node: NodeOrNone = -1
    rendezvous: Name = ""


class AskedToLeave(Message, frozen=True):
    """A signal says that `node` may be gone in `grace` seconds. Repeated for each manager."""

    node: Node
    cause: Text
    grace: Seconds


class May(Message, frozen=True):
    """May the sender keep records of `node` for `agent`, or with `fetch` give it those it keeps?"""

    node: Node
    agent: Name
    fetch: bool


class AgentJoined(Message, frozen=True):
    """An agent registers for its node and `ranks`, with all its state, so that a new manager can
    take over."""

    node: Node
    ranks: Ranks
    store: Address  # where a rendezvous store hosted by this agent can be reached
    epoch: Number = 0  # counts restarts of all its processes; a new one starts from nothing
    incarnations: Numbers = ()  # of `ranks`, in their order; empty: all 0
    joined: Ranks = ()  # ranks whose scripts have called protect()
    waiting: Ranks = ()  # ranks that are interrupted
    dead: Ranks = ()  # ranks without a process
    new: Ranks = ()  # replacements that have not been given their state
    ready: Ranks = ()  # of these, those that wait for orders
    # what the processes before `dead` and `new` left behind, in their order; empty: not known
    left: Left = ()
    generation: Number = 0  # the communicators' generation, 0: the scripts' own
    interruption: Number = 0  # number of the newest interruption
    # names the agent's process: another process is another agent, whichever node it claims
    agent: Name = ""
    records: Address = ("", 0)  # where it accepts copies of other nodes' records
    keepers: Keepers = ()  # the nodes that keep copies of its ranks' records
    # nodes whose records it keeps, the generation in which they came, and the newest step of all
    keeps: tuple[tuple[Node, Number, Step], ...] = ()
    released: StepOrNone = -1  # no step before this one will be repeated
    # while the node moves: the standby that gets it, reported by its former agent; and the former
    # agent, reported by the standby once its ranks have their state
    moves_to: Name = ""
    former: Name = ""
    moving: bool = False  # its newest interruption came in a pause for a move
    handlers: bool = False  # see from_rank.RankJoined
    switches: Number = 0  # how often recovery has been switched, see to_agent.KeepSwitch
    profile: Ranges = ()  # what its ranks profile, see to_rank.Profile
    dumps: Dumps = ()  # that each of `joined` could begin from
    faults: FaultCount = FaultCount()  # in its container
    condemned: Ranks = ()  # on hardware that is to leave the job
    unprotected: Text = ""  # why its ranks train on without protection
    # the generation in which its ranks last resumed; the ranks that are away since, and who stands
    # in for each
    resumed: Number = 0
    stand_ins: StandIns = ()
    about: About = About()


class AgentLeft(Message, frozen=True):
    """The agent ended: `ok` if all its ranks ended well; `stopped`: its launcher, by a signal.
    `ending`: how, where it is not `ok`."""

    node: Node
    ok: bool
    why: Text = ""
    stopped: bool = False
    ending: Ending = "failed"


class StandbyJoined(Message, frozen=True):
    """A standby registers and waits for a node. `agent` names its process, `ranks` is how many it
    can run; `records`: see AgentJoined. `prepares`: the node that it prepares for."""

    agent: Name
    ranks: Annotated[int, Meta(ge=1, le=ROOM)]
    records: Address = ("", 0)
    prepares: Preparation | None = None
    about: About = About()


class NodeTaken(Message, frozen=True):
    """Standby `agent` has taken over `node`, and its ranks are being started. `left`: the position
    of each by a keeper's records, None where there are none. The others: see AgentJoined."""

    node: Node
    agent: Name
    store: Address
    records: Address
    left: Left
    faults: FaultCount = FaultCount()


class RecordsTaken(Message, frozen=True):
    """The answer to TakeRecords. `left`: the positions of the ranks `away` by their records, None
    where there are none. `why`: they could not be put in place, "" if they were."""

    node: Node
    interruption: Number
    away: Ranks
    left: Left
    why: Text = ""


class NodePrepared(Message, frozen=True):
    """Standby `agent` is ready to take over `node`: its ranks are before their first attempt."""

    node: Node
    agent: Name


class PreparationFailed(Message, frozen=True):
    """Standby `agent` cannot take over `node`, and waits again."""

    node: Node
    agent: Name
    why: Text


class RankDied(Message, frozen=True):
    """A rank's process is gone or, by its `cause`, cannot be kept. `position`: from its records.
    `raised`: the exception that ended it, in one line; "" if none is known. `pid`: of the process;
    `traceback`: of the exception. Both are for people."""

    rank: Rank
    incarnation: Number
    cause: Text
    position: Position | None = None
    raised: Text = ""
    pid: Count = 0
    traceback: Text = ""

    @property
    def why(self) -> str:
        return f"{self.cause} after {self.raised}" if self.raised else self.cause


class RankEnded(Message, frozen=True):
    """The rank's process has exited with status 0. `step`: the next that it would have begun.
    `left_loop`: its script had left the loop before that step, as by break."""

    rank: Rank
    incarnation: Number
    step: StepOrNone = -1
    position: Position | None = None
    left_loop: bool = False


class RankBusy(Message, frozen=True):
    """An interrupted rank is in user code, and may stay there for `allowance` seconds."""

    rank: Rank
    incarnation: Number
    interruption: Number
    allowance: Seconds


class RankStalled(Message, frozen=True):
    """The rank has made no progress for `seconds`, longer than its limit; it may be at fault or
    waiting for the one that is. `stopped`: by a signal, all that time."""

    rank: Rank
    incarnation: Number
    step: Step
    seconds: Seconds
    stopped: bool = False


class ProgressReport(Message, frozen=True):
    """A rank's answer to progress probe `call`; its agent answers for a rank that does not
    (`answered` False).

    `collectives`: how many it has begun in this attempt. `waiting`: it waits where ranks are meant
    to wait (interrupted, paused, finished). `overdue`: it has made no progress for `seconds`,
    longer than its limit. `cpu`: CPU seconds used so far. `where`: its phase, or the state of its
    process, in words. `stopped`: by a signal. `queued`: seconds spent runnable without a CPU so
    far; like `cpu`, over all its threads and child processes. `limit`: seconds that it may spend
    in its current phase; 0: no limit. `patient`: it has requested more time. `left`: its script has
    left the loop before `step`.
    """

    rank: Rank
    incarnation: Number
    call: Number
    answered: bool
    step: Step
    collectives: Count
    waiting: bool
    overdue: bool
    seconds: Seconds
    cpu: Seconds
    where: Text
    stopped: bool = False
    queued: Seconds = 0.0
    limit: Seconds = 0.0
    patient: bool = False
    left: bool = False


class StepsBegun(Message, frozen=True):
    """A node's answer to AskSteps: no rank on it has begun `step` or any later step."""

    node: Node
    step: Step


class SchedulerDied(Message, frozen=True):
    """MindSpore's scheduler, on `node`, has ended as `cause`; there is another one by now."""

    node: Node
    cause: Text


class RecordsSaved(Message, frozen=True):
    """The agent of `node` has written the records of `ranks` to the dump, or failed: `why`.
    `dump`: see to_rank.AskPosition."""

    node: Node
    interruption: Number
    files: tuple[File, ...]
    why: Text = ""
    ranks: tuple[Rank, ...] = ()
    dump: Number = 0


class Sealed(Message, frozen=True):
    """The dump is complete at `path`, or could not be sealed: `why`. `dump`: see
    to_rank.AskPosition."""

    node: Node
    interruption: Number
    path: Text
    why: Text = ""
    dump: Number = 0


class DevicesFound(Message, frozen=True):
    """The device-info of the devices of the agent's ranks, in their order; replaces the previous
    one. `node`: STANDBY for a standby."""

    node: NodeOrStandby
    devices: Annotated[tuple[DeviceState, ...], Meta(max_length=ROOM)]


class DevicesAt(Message, frozen=True):
    """The manager finds the device-info of the agent's devices itself: under the name `host`.
    `chips`: the numbers of its ranks' chips there, in their order. `node`: see DevicesFound."""

    node: NodeOrStandby
    host: HostName
    chips: Numbers


FromAgent = (
    Heartbeat
    | VoterState
    | Vote
    | RosterKept
    | Arrived
    | AskedToLeave
    | May
    | AgentJoined
    | AgentLeft
    | StandbyJoined
    | NodeTaken
    | RecordsTaken
    | NodePrepared
    | PreparationFailed
    | RankDied
    | RankEnded
    | RankBusy
    | RankStalled
    | ProgressReport
    | StepsBegun
    | SchedulerDied
    | RecordsSaved
    | Sealed
    | DevicesFound
    | DevicesAt
    | Ack
    | from_rank.RankJoined
    | from_rank.OptimizerReplicas
    | from_rank.StrategyRequested
    | from_rank.RankRaised
    | from_rank.NotProtected
    | from_rank.CollectiveFailed
    | from_rank.RankFaulted
    | from_rank.RankInterrupted
    | from_rank.RankReady
    | from_rank.RankRebuilt
    | from_rank.RankRestored
    | from_rank.RankFailed
    | from_rank.RankPosition
    | from_rank.StateSaved
    | from_rank.SaveEstimate
    | from_rank.StepCommitted
    | from_rank.RankFinished
    | from_rank.RankPaused
    | from_rank.TaskDone
    | from_rank.StepTimes
    | from_rank.RankPassed
    | from_rank.GroupReady
    | from_rank.Injected
)
