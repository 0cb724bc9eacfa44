"""What an agent says to the manager, beside what its ranks say. The first message of all tells
everything that it knows (AgentJoined, or StandbyJoined), so that a new manager can take over."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from taskd.messages import from_rank
from taskd.messages.to_agent import Ack
from taskd.messages.values import (
    ROOM,
    Address,
    Count,
    File,
    Left,
    Message,
    Name,
    Node,
    NodeOrNone,
    NodeOrStandby,
    Number,
    Numbers,
    Position,
    Rank,
    Ranks,
    Seconds,
    Stamp,
    Step,
    StepOrNone,
    Text,
)


class Heartbeat(Message, frozen=True):
    """Still here. Numbered by the envelope's `seq`. `unheard`: how many of its messages the agent
    does not know to have been heard; the manager says then how far it has."""

    ranks_alive: Count
    unheard: Count = 0


class VoterState(Message, frozen=True):
    """To a manager that the agent meets: the term and manager that it has acknowledged last, the
    newest roster that it has (`members` is empty where it has only the stamp), and whether it has a
    manager (`content`). `members`: see RosterIs."""

    term: Number
    manager: Name
    stamp: Stamp
    members: dict[Name, NodeOrStandby]
    content: bool


class Vote(Message, frozen=True):
    """Whether the claim of `term` is acknowledged."""

    term: Number
    granted: bool


class RosterKept(Message, frozen=True):
    stamp: Stamp


class Arrived(Message, frozen=True):
    """A launcher that has been started for `node`, to the manager: is the job under way already?
    -1: it does not know its node yet."""

    node: NodeOrNone = -1


class May(Message, frozen=True):
    """Agent `agent` wants its records of `node` kept here, or with `fetch` those of `node` that are
    here. May it?"""

    node: Node
    agent: Name
    fetch: bool


class AgentJoined(Message, frozen=True):
    """An agent is connected and owns `ranks`; it tells everything it knows, so that a new manager
    can take over.

    `epoch` counts whole restarts of the processes on that node; a new epoch starts from nothing.
    """

    node: Node
    ranks: Ranks
    store: Address  # where a rendezvous store hosted by this agent can be reached
    epoch: Number = 0
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
    # names the agent's process: another one is another agent, whatever node it says it is
    agent: Name = ""
    records: Address = ("", 0)  # where it takes copies of other nodes' records
    keeper: NodeOrNone = -1  # the node that keeps copies of its ranks' records
    # nodes whose records it keeps, and the newest step of which it has those of all ranks
    keeps: tuple[tuple[Node, Step], ...] = ()
    released: StepOrNone = -1  # no step before this one will be repeated


class AgentLeft(Message, frozen=True):
    """The agent ended: `ok` when every rank of its node ended well."""

    node: Node
    ok: bool
    why: Text = ""


class StandbyJoined(Message, frozen=True):
    """An agent without a node waits to take one over. `agent` names its process, `ranks` is how
    many it can run; `records`: see AgentJoined."""

    agent: Name
    ranks: Annotated[int, Meta(ge=1, le=ROOM)]
    records: Address = ("", 0)


class NodeTaken(Message, frozen=True):
    """Standby `agent` has taken `node` over, and its ranks are being started. `left`: where each of
    them was, by the records that were kept on another node; None where there is none. `store` and
    `records`: see AgentJoined."""

    node: Node
    agent: Name
    store: Address
    records: Address
    left: Left


class NodePrepared(Message, frozen=True):
    """Standby `agent` is ready to take `node` over: its ranks have run their scripts up to the
    first attempt."""

    node: Node
    agent: Name


class PreparationFailed(Message, frozen=True):
    """Standby `agent` cannot take `node` over, and waits again."""

    node: Node
    agent: Name
    why: Text


class RankDied(Message, frozen=True):
    """The process of a rank is gone (or cannot be kept: `cause` says). `position` is what it left
    behind."""

    rank: Rank
    incarnation: Number
    cause: Text
    position: Position | None = None


class RankEnded(Message, frozen=True):
    """The rank's process has ended well. `step`: the next one that it would have begun, -1 where
    that is not known; `position`: see RankDied."""

    rank: Rank
    incarnation: Number
    step: StepOrNone = -1
    position: Position | None = None


class RankBusy(Message, frozen=True):
    """Asked to stop, the rank is in user code that it cannot be called out of; `allowance`:
    seconds it may still take."""

    rank: Rank
    incarnation: Number
    interruption: Number
    allowance: Seconds


class RankStalled(Message, frozen=True):
    """The rank has made no progress for `seconds`, longer than its limit; it may be the one at
    fault or wait for it. `stopped`: it was found stopped by a signal all that time, wherever it
    is."""

    rank: Rank
    incarnation: Number
    step: Step
    seconds: Seconds
    stopped: bool = False


class ProgressReport(Message, frozen=True):
    """A rank's answer to progress probe `call`; its agent answers for one that does not (`answered`
    False).

    `collectives`: how many it has begun in this attempt. `waiting`: it is where ranks wait for the
    others on purpose (interrupted, paused, finished). `overdue`: it has made no progress for
    `seconds`, longer than its limit. `cpu`: processor time used so far, in seconds. `where`: phase,
    or the state of its process, in words. `stopped`: by a signal; the kernel does not let it run.
    `queued`: seconds so far that it was ready to run and had no processor; like `cpu` of all its
    threads and of what it has started. `limit`: the seconds that it may take where it is; 0 where
    there is no limit. `patient`: it has asked for more.
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


class StepsBegun(Message, frozen=True):
    """A node's answer to AskSteps: no rank on it has begun `step` or a later one."""

    node: Node
    step: Step


class RecordsSaved(Message, frozen=True):
    """The agent of `node` has written its ranks' records, or `why` not."""

    node: Node
    interruption: Number
    files: tuple[File, ...]
    why: Text = ""


class Sealed(Message, frozen=True):
    """The dump is complete, and lies at `path`; or `why` not."""

    node: Node
    interruption: Number
    path: Text
    why: Text = ""


FromAgent = (
    Heartbeat
    | VoterState
    | Vote
    | RosterKept
    | Arrived
    | May
    | AgentJoined
    | AgentLeft
    | StandbyJoined
    | NodeTaken
    | NodePrepared
    | PreparationFailed
    | RankDied
    | RankEnded
    | RankBusy
    | RankStalled
    | ProgressReport
    | StepsBegun
    | RecordsSaved
    | Sealed
    | Ack
    | from_rank.RankJoined
    | from_rank.RankRaised
    | from_rank.CollectiveFailed
    | from_rank.RankFaulted
    | from_rank.RankInterrupted
    | from_rank.RankReady
    | from_rank.RankRebuilt
    | from_rank.RankRestored
    | from_rank.RankFailed
    | from_rank.StateSaved
    | from_rank.StepCommitted
    | from_rank.RankFinished
    | from_rank.RankPaused
    | from_rank.RankPassed
    | from_rank.Injected
)
