"""What can happen to a job. Every event is a frozen dataclass; the shells make them from messages
and timers.

`incarnation` numbers the processes that have held a rank: 0 is the one the launcher started, +1 for
each replacement. An event from another incarnation than the present one is late and changes
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core.demand import Demand


@dataclass(frozen=True)
class AgentJoined:
    """An agent is connected and owns `ranks`; it tells everything it knows, so that a new manager
    can take over.

    `epoch` counts whole restarts of the processes on that node; a new epoch starts from nothing.
    """

    node: int
    ranks: tuple[int, ...]
    store: tuple[str, int]  # where a rendezvous store hosted by this agent can be reached
    epoch: int = 0
    incarnations: tuple[int, ...] = ()  # of `ranks`, in their order; empty: all 0
    joined: tuple[int, ...] = ()  # ranks whose scripts have called protect()
    waiting: tuple[int, ...] = ()  # ranks that are paused
    dead: tuple[int, ...] = ()  # ranks without a process
    new: tuple[int, ...] = ()  # replacements that have not been given their state
    ready: tuple[int, ...] = ()  # of these, those that wait for orders
    # what the processes before `dead` and `new` left behind, in their order; empty: not known
    left: tuple[Position | None, ...] = ()
    generation: int = 0  # the communicators' generation, 0: the scripts' own
    pause: int = 0  # number of the newest pause
    # names the agent's process: another one is another agent, whatever node it says it is
    agent: str = ""
    records: tuple[str, int] = ("", 0)  # where it takes copies of other nodes' records
    keeper: int = -1  # the node that keeps copies of its ranks' records
    keeps: tuple[int, ...] = ()  # nodes whose records it keeps
    released: int = -1  # no step before this one will be repeated


@dataclass(frozen=True)
class AgentLeft:
    """The agent ended: `ok` when every rank of its node ended well."""

    node: int
    ok: bool
    why: str = ""


@dataclass(frozen=True)
class AgentLost:
    """Nothing has been heard of the agent for longer than the limit; `why` says which limit."""

    node: int
    why: str


@dataclass(frozen=True)
class StandbyJoined:
    """An agent without a node waits to take one over. `agent` names its process, `ranks` is how
    many it can run; `records`: see AgentJoined."""

    agent: str
    ranks: int
    records: tuple[str, int] = ("", 0)


@dataclass(frozen=True)
class StandbyLost:
    """A standby has left, or nothing is heard of it; `why` says which."""

    agent: str
    why: str


@dataclass(frozen=True)
class NodeTaken:
    """Standby `agent` has taken `node` over, and its ranks are being started. `left`: where each of
    them was, by the records that were kept on another node; None where there is none. `store` and
    `records`: see AgentJoined."""

    node: int
    agent: str
    store: tuple[str, int]
    records: tuple[str, int]
    left: tuple[Position | None, ...]


@dataclass(frozen=True)
class RecoverySwitched:
    """An operator has faults repaired from now on, or not (the documented process-recover-enable
    `on` and `pause`). An incident under way is brought to its end. `request` names whom to
    answer."""

    request: str
    on: bool


@dataclass(frozen=True)
class NodeSubHealthy:
    """`node` still works and should not be relied on; `why` says what is the matter. `request`
    names whom to answer, "" for nobody."""

    request: str
    node: int
    why: str


@dataclass(frozen=True)
class DeviceLevel:
    """Something has arisen on the device of `rank`, whatever process the rank has: `text` says by
    which rule. `level` is its name, "" for nothing new; `demand` what it asks for, and `why`.
    `usable`: a process may be started on a device of that level. `unusable`: why no further process
    may be started on this one, "" where one may. `request`: see NodeSubHealthy."""

    request: str
    rank: int
    text: str
    level: str = ""
    demand: Demand = Demand.NOTHING
    usable: bool = True
    why: str = ""
    unusable: str = ""


@dataclass(frozen=True)
class NodePrepared:
    """Standby `agent` is ready to take `node` over: its ranks have run their scripts up to the
    first attempt."""

    node: int
    agent: str


@dataclass(frozen=True)
class PreparationFailed:
    """Standby `agent` cannot take `node` over, and waits again."""

    node: int
    agent: str
    why: str


@dataclass(frozen=True)
class FormerLost:
    """While `node` moves to another agent: nothing is heard any more of `agent`, which has had
    it."""

    node: int
    agent: str
    why: str


@dataclass(frozen=True)
class RankJoined:
    """The rank's script called protect()."""

    rank: int
    incarnation: int = 0


@dataclass(frozen=True)
class RankDied:
    """The process of a rank is gone (or cannot be kept: `cause` says). `position` is what it left
    behind."""

    rank: int
    incarnation: int
    cause: str
    position: Position | None = None


@dataclass(frozen=True)
class RankRaised:
    """An exception is leaving the rank's attempt: the process will most likely end. `text`
    identifies it."""

    rank: int
    incarnation: int
    step: int
    text: str


@dataclass(frozen=True)
class CollectiveFailed:
    """A living rank's communicator failed and nothing has told the rank why; it waits for
    orders."""

    rank: int
    incarnation: int
    step: int
    text: str


@dataclass(frozen=True)
class RankFaulted:
    """A living rank's device, memory or link is at fault and the rank, or its agent, knows which;
    the rank waits for orders.

    `fault`: one of the documented fault types, an index into FAULTS. `page`: address of the memory
    page, 0 where there is none.
    """

    rank: int
    incarnation: int
    step: int
    fault: int
    text: str
    page: int = 0


MEMORY, OTHER, NETWORK = 0, 1, 2
FAULTS = ("on-chip memory", "other", "network")  # the documented fault types, by number


@dataclass(frozen=True)
class RankStalled:
    """The rank has made no progress for `seconds`, longer than its limit; it may be the one at
    fault or wait for it. `stopped`: it was found stopped by a signal all that time, wherever it
    is."""

    rank: int
    incarnation: int
    step: int
    seconds: float
    stopped: bool = False


@dataclass(frozen=True)
class RankPresent:
    """A rank's answer to roll call `call`; its agent answers for one that does not (`answered`
    False).

    `collectives`: how many it has begun in this attempt. `waiting`: it is where ranks wait for the
    others on purpose (paused, held, finished). `overdue`: it has made no progress for `seconds`,
    longer than its limit. `cpu`: processor time used so far, in seconds. `where`: phase, or the
    state of its process, in words. `stopped`: by a signal; the kernel does not let it run.
    `queued`: seconds so far that it was ready to run and had no processor; like `cpu` of all its
    threads and of what it has started. `limit`: the seconds that it may take where it is; 0 where
    there is no limit. `patient`: it has asked for more.
    """

    rank: int
    incarnation: int
    call: int
    answered: bool
    step: int
    collectives: int
    waiting: bool
    overdue: bool
    seconds: float
    cpu: float
    where: str
    stopped: bool = False
    queued: float = 0.0
    limit: float = 0.0
    patient: bool = False


@dataclass(frozen=True)
class Position:
    """Where a rank stands, in steps of its training loop. Sets are steps whose record is complete
    and checked.

    `final`: entry states recorded at the start of a step. `provisional`: recorded when the step
    before was committed, so they miss what user code between two steps may have changed. `stripes`:
    this rank's part of the node's copy of the training state at the start of a step. `clean`: the
    step at whose start the rank's training state in memory is, None when an attempt has changed it.
    `drifted`: steps whose final entry differed from the provisional one. `doubted`: its memory and
    stripes may be wrong without saying so: replicas go before them.
    """

    step: int
    clean: int | None
    final: frozenset[int] = frozenset()
    provisional: frozenset[int] = frozenset()
    stripes: frozenset[int] = frozenset()
    drifted: frozenset[int] = frozenset()
    doubted: bool = False


@dataclass(frozen=True)
class RankPaused:
    """The rank has left its collectives for pause number `pause` and waits for orders. `unfit`: why
    its process cannot go on."""

    rank: int
    incarnation: int
    pause: int
    position: Position
    unfit: str = ""


@dataclass(frozen=True)
class RankBusy:
    """Asked to pause, the rank is in user code that it cannot be called out of; `allowance`:
    seconds it may still take."""

    rank: int
    incarnation: int
    pause: int
    allowance: float


@dataclass(frozen=True)
class RankReady:
    """A replacement has run its script up to the first attempt and waits for orders."""

    rank: int
    incarnation: int


@dataclass(frozen=True)
class RankRebuilt:
    rank: int
    incarnation: int
    generation: int


@dataclass(frozen=True)
class RankRestored:
    """State and private entry are in place; `digest` is the checksum of the shard, equal on all of
    its replicas."""

    rank: int
    incarnation: int
    generation: int
    digest: str


@dataclass(frozen=True)
class RankFailed:
    """A living rank could not do what it was told in `generation`; it has left its collectives and
    waits."""

    rank: int
    incarnation: int
    generation: int
    reason: str


@dataclass(frozen=True)
class StateSaved:
    """The rank has written its part of the dump: `files` are (name, bytes, checksum)."""

    rank: int
    incarnation: int
    pause: int
    files: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class RecordsSaved:
    """The agent of `node` has written its ranks' records, or `why` not."""

    node: int
    pause: int
    files: tuple[tuple[str, int, str], ...]
    why: str = ""


@dataclass(frozen=True)
class Sealed:
    """The dump is complete, and lies at `path`; or `why` not."""

    node: int
    pause: int
    path: str
    why: str = ""


@dataclass(frozen=True)
class StepCommitted:
    """The first step after a resume is committed on this rank."""

    rank: int
    incarnation: int
    generation: int
    step: int


@dataclass(frozen=True)
class RankFinished:
    """The rank's loop over steps or batches is over before `step`; it waits for the others, still
    able to be taken back."""

    rank: int
    incarnation: int
    step: int


@dataclass(frozen=True)
class HoldRequested:
    """Somebody wants all ranks to stop at one step boundary; `request` names whom to answer."""

    request: str


@dataclass(frozen=True)
class ContinueRequested:
    """Held ranks may go on."""

    request: str


@dataclass(frozen=True)
class StepsBegun:
    """A node's answer to AskSteps: no rank on it has begun `step` or a later one."""

    node: int
    step: int


@dataclass(frozen=True)
class RankHeld:
    """The rank has stopped before `step`, as it was told to."""

    rank: int
    incarnation: int
    step: int


@dataclass(frozen=True)
class RankPassed:
    """The rank had begun `step` when it was told to stop before it."""

    rank: int
    incarnation: int
    step: int


@dataclass(frozen=True)
class RankEnded:
    """The rank's process has ended well. `step`: the next one that it would have begun, -1 where
    that is not known; `position`: see RankDied."""

    rank: int
    incarnation: int
    step: int = -1
    position: Position | None = None


@dataclass(frozen=True)
class AgentStands:
    """An agent that is connected to this manager says where it stands: the term and manager that it
    has acknowledged last, the newest roster that it has (`members`: agent -> node; empty where it
    has only the stamp), and whether it has a manager (`content`). See core.election."""

    agent: str
    term: int
    manager: str
    stamp: tuple[int, int]
    members: dict[str, int] = field(hash=False)
    content: bool


@dataclass(frozen=True)
class AgentVoted:
    """Whether the agent acknowledges this manager's claim of `term`."""

    agent: str
    term: int
    granted: bool


@dataclass(frozen=True)
class RosterKept:
    """The agent has the roster of `stamp`."""

    agent: str
    stamp: tuple[int, int]


@dataclass(frozen=True)
class AgentDisconnected:
    """The connection over which the agent has said where it stands has ended."""

    agent: str


@dataclass(frozen=True)
class OtherManager:
    """Another manager is in charge of `term`."""

    term: int


@dataclass(frozen=True)
class AgentAnswered:
    """The agent of `node` lives: it has answered a Challenge."""

    node: int


@dataclass(frozen=True)
class Tick:
    """Time has passed; deadlines are looked at."""


Event = (
    AgentJoined
    | AgentLeft
    | AgentLost
    | StandbyJoined
    | StandbyLost
    | NodeTaken
    | RecoverySwitched
    | NodeSubHealthy
    | DeviceLevel
    | NodePrepared
    | PreparationFailed
    | FormerLost
    | RankJoined
    | RankDied
    | RankRaised
    | CollectiveFailed
    | RankFaulted
    | RankStalled
    | RankPresent
    | RankPaused
    | RankBusy
    | RankReady
    | RankRebuilt
    | RankRestored
    | RankFailed
    | StateSaved
    | RecordsSaved
    | Sealed
    | StepCommitted
    | RankFinished
    | HoldRequested
    | ContinueRequested
    | StepsBegun
    | RankHeld
    | RankPassed
    | RankEnded
    | AgentStands
    | AgentVoted
    | RosterKept
    | AgentDisconnected
    | OtherManager
    | AgentAnswered
    | Tick
)


@dataclass(frozen=True)
class Settings:
    """Limits of the coordinator, all in seconds unless said otherwise. Where a number comes from
    stands beside it."""

    nodes: int
    ranks_per_node: int
    ladder: tuple[str, ...] = ("retry", "recover-in-place", "exit")
    sub_healthy: str = "ignore"  # one of ladder.SUB_HEALTHY
    # ask a second time: a cut takes 2-5 ms; one lost cut was once seen (docs/design.md)
    pause_again: float = 0.5
    # agents ask for more for ranks that are in user code and within their limit (RankBusy)
    pause: float = 2.0
    # fault-retry-times: how often all ranks are restarted where they are when the ladder has come
    # to its end
    retries: int = 0
    # until a standby has come for a lost node (wait-reschedule-timeout, documented: 30 to 270)
    reschedule: float = 270.0
    # until a standby's ranks have run the user's script up to its first attempt; documented: 15
    # minutes
    prepare: float = 900.0
    # until all ranks stand before the same step, so that a node may move: a step may be long
    stand: float = 300.0
    take_over: float = 30.0  # until it has the records of that node, some 10 kB a rank
    # a replacement runs the user's script up to its first attempt; a fresh interpreter needs ~2 s
    replace: float = 120.0
    rebuild: float = 20.0  # 16 ranks need 0.2 s
    restore: float = 120.0  # ~4 GB/s on a node
    dump: float = 1800.0  # MindIO's documented limit for a save: 30 minutes
    # the first step may be long; a hang in it is the watchdog's business, this is the last net
    resume: float = 300.0
    kill: float = 10.0  # the kernel needs 0.1-0.3 s per GiB to tear a process down
    # deaths of a rank's replacements in one incident before the strategy is given up
    replacements: int = 3
    # pauses under one strategy before it is given up; two more for each rank that is replaced, or
    # shall be
    rounds: int = 12
    # times that a rank may fail at a rebuild or restore in one incident before its process is
    # replaced
    failures: int = 2
    # in a repair, until it is seen whether a rank was stopped; from call to call twice as long.
    # None: never
    look: float | None = 2.0
    looks: float = 8.0  # at most so long from call to call
    # that a replacement may wait for something without using a processor, while all others wait for
    # it
    idle: float = 20.0
    roll_call: float = 1.0  # agents answer for silent ranks after 0.25 s
    between_calls: float = 0.2  # a rank that has moved in this time is not hung
    form: float = 600.0  # from the first rank's protect() to the last one's
    # until a new manager has heard of all living nodes; they find it in ~0.3 s, but a standby that
    # was sent to a lost node by the one before is only heard when it has that node: 3.3 s on a busy
    # machine
    gather: float = 6.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.ranks_per_node < 1:
            raise ValueError(
                f"nodes={self.nodes}, ranks_per_node={self.ranks_per_node}: both must be at least 1"
            )


@dataclass
class Timeline:
    """When each phase of an incident was entered, for the report."""

    entered: list[tuple[str, float]] = field(default_factory=list)

    def enter(self, phase: str, now: float) -> None:
        self.entered.append((phase, now))

    def durations(self, end: float) -> dict[str, float]:
        """Seconds spent in each phase, in order of first entry; a phase entered twice is summed."""
        out: dict[str, float] = {}
        for (phase, begin), (_, after) in zip(
            self.entered, [*self.entered[1:], ("", end)], strict=True
        ):
            out[phase] = out.get(phase, 0.0) + (after - begin)
        return out
