"""What the manager says to an agent: orders, and what is between the two of them. Orders to ranks
travel through the agent of their node."""

from __future__ import annotations

from taskd.messages import to_rank
from taskd.messages.values import (
    Address,
    Count,
    File,
    Message,
    Name,
    Node,
    NodeOrStandby,
    Number,
    Numbers,
    Rank,
    Ranks,
    Report,
    Stamp,
    Step,
)


class Ack(Message, frozen=True):
    """Everything up to `number` has been heard; agents say it too. See core.delivery."""

    number: Number


class RegisterAgain(Message, frozen=True):
    """To an agent that the manager does not know: register again."""


class Refused(Message, frozen=True):
    """Your registration is refused, and why. Final."""

    reason: Report


class UnderWay(Message, frozen=True):
    """The answer to Arrived. A launcher that comes to a job that is under way can only take a lost
    node's place. `taken`: its node has another launcher, which lives."""

    protected: bool
    taken: bool = False


class Claim(Message, frozen=True):
    """The term of the envelope is claimed, by one that knows the roster of `stamp`."""

    stamp: Stamp


class RosterIs(Message, frozen=True):
    """Who may vote from now on (only to those that may become the manager's host:
    `members`, the name of an agent and its node, STANDBY for none), and where managers may be
    found, the most likely place first. `nodes` and `ranks_per_node` of the job. `pid`: of the
    manager's process, for agents on its machine."""

    stamp: Stamp
    members: dict[Name, NodeOrStandby]
    successors: tuple[Address, ...]
    nodes: Count
    ranks_per_node: Count
    pid: Number = 0


class Permit(Message, frozen=True):
    """The answer to May. `ranks` of the node, whose records are to be kept."""

    node: Node
    agent: Name
    fetch: bool
    granted: bool
    ranks: Ranks


class Replace(Message, frozen=True):
    """Start a new process for `rank`."""

    rank: Rank
    incarnation: Number
    reason: Report


class Kill(Message, frozen=True):
    """End the process of `rank`, if it is still `incarnation`. `stacks`: first have it write down
    where its threads are."""

    rank: Rank
    incarnation: Number
    reason: Report
    stacks: bool = False


class Prepare(Message, frozen=True):
    """Standby `agent` starts what will be the ranks of `node`, while they train where they are;
    fields as in TakeOver."""

    agent: Name
    node: Node
    ranks: Ranks
    incarnations: Numbers
    nodes: Count
    world_size: Count
    epoch: Number
    records: Address
    reason: Report


class StandDown(Message, frozen=True):
    """Standby `agent` ends what it has started for `node`, and waits again."""

    agent: Name
    node: Node
    reason: Report


class TakeOver(Message, frozen=True):
    """Standby `agent` becomes `node`: it fetches the node's records from `records`, if that is not
    ("", 0), and starts `ranks` as processes number `incarnations` in a job of `nodes` nodes and
    `world_size` ranks. `epoch`, `generation` and `interruption`: see AgentJoined. `former`: the
    agent that has the node until its new ranks have their state, "" where it is lost."""

    agent: Name
    node: Node
    ranks: Ranks
    incarnations: Numbers
    nodes: Count
    world_size: Count
    epoch: Number
    generation: Number
    interruption: Number
    records: Address
    reason: Report
    former: Name = ""


class Fence(Message, frozen=True):
    """The agent process `agent` is no part of the job any more, whatever it says: it ends its ranks
    and leaves."""

    agent: Name
    node: Node
    reason: Report


class KeepRecords(Message, frozen=True):
    """The agent of `node` has a copy of its ranks' records kept by the agent of node `keeper`,
    which takes them at `at`."""

    node: Node
    keeper: Node
    at: Address


class SaveRecords(Message, frozen=True):
    """Every agent saves its ranks' records for the start of `step` as part of the dump `name`, and
    those of lost nodes that it keeps. `lost`: (node, keeper) pairs."""

    interruption: Number
    step: Step
    name: Name
    lost: tuple[tuple[Node, Node], ...]


class Seal(Message, frozen=True):
    """The agent of `node` makes a dump of what has been written: `files` are (name, bytes,
    checksum)."""

    interruption: Number
    node: Node
    step: Step
    name: Name
    world_size: Count
    files: tuple[File, ...]


class AskSteps(Message, frozen=True):
    """Every agent says which step nobody on its node has begun."""


class RestartAll(Message, frozen=True):
    """All ranks are stopped and started anew by their launchers, which count it against
    --max_restarts.

    `epochs`: (node, epoch) pairs; a node that has gone past that epoch has been restarted already.
    `store`: where the scripts' process groups meet, as attempt number `attempt`; ("", 0) where the
    launchers' own rendezvous still has the same nodes.
    """

    epochs: tuple[tuple[Node, Number], ...]
    reason: Report
    store: Address = ("", 0)
    attempt: Number = 0


class GiveUp(Message, frozen=True):
    """Stop all ranks and leave with an error; `reason` is the paragraph that the user reads."""

    reason: Report


class End(Message, frozen=True):
    """The job is over; the manager may leave."""

    ok: bool
    reason: Report


ToAgent = (
    Ack
    | RegisterAgain
    | Refused
    | UnderWay
    | Claim
    | RosterIs
    | Permit
    | Replace
    | Kill
    | Prepare
    | StandDown
    | TakeOver
    | Fence
    | KeepRecords
    | SaveRecords
    | Seal
    | AskSteps
    | RestartAll
    | GiveUp
    | End
    | to_rank.Interrupt
    | to_rank.Rebuild
    | to_rank.Restore
    | to_rank.Resume
    | to_rank.SaveState
    | to_rank.Release
    | to_rank.Pause
    | to_rank.Continue
    | to_rank.ProbeProgress
    | to_rank.Inject
)
