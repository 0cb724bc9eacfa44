"""Messages from the manager to an agent: orders, including those it relays to its node's ranks, and
messages between the two alone."""

from __future__ import annotations

from typing import Literal

from taskd.messages import to_rank
from taskd.messages.values import (
    Address,
    Addresses,
    Count,
    File,
    Keepers,
    Message,
    Name,
    Node,
    Number,
    Numbers,
    Rank,
    Ranks,
    Report,
    Seconds,
    Source,
    Stamp,
    Step,
    Voting,
)


class Ack(Message, frozen=True):
    """Acknowledges every message up to `number`; agents send it too. See protocol.delivery."""

    number: Number


class TimeAsked(Message, frozen=True):
    """Asks for a heartbeat at once, whose envelope has the agent's time. `at`: the manager's."""

    at: Seconds


class RegisterAgain(Message, frozen=True):
    """Orders an agent that the manager does not know to register again."""


class RegistrationRefused(Message, frozen=True):
    """Refuses the agent's registration. Final."""

    reason: Report


class UnderWay(Message, frozen=True):
    """The answer to Arrived. A launcher that joins a job under way can only replace a node, where
    the job `replaces` any. `taken`: its node, or each node where it does not know its own, has
    another, living launcher. `rendezvous`: of the first launcher that named one."""

    under_way: bool
    replaces: bool
    taken: bool = False
    rendezvous: Name = ""


class Claim(Message, frozen=True):
    """The manager claims the envelope's term and knows the roster of `stamp`."""

    stamp: Stamp


class RosterIs(Message, frozen=True):
    """The new roster. `members`: sent only to agents that may host a manager. `successors`: where
    managers may be found, the most likely place first. `nodes` and `ranks_per_node`: of the job.
    `pid`: of the manager's process, for agents on its machine."""

    stamp: Stamp
    members: dict[Name, Voting]
    successors: tuple[Address, ...]
    nodes: Count
    ranks_per_node: Count
    pid: Number = 0


class Permit(Message, frozen=True):
    """The answer to May. `ranks`: the node's ranks, whose records are concerned."""

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
    """Kill the process of `rank`, if it is still `incarnation`. `stacks`: first have it
    dump its threads' stacks."""

    rank: Rank
    incarnation: Number
    reason: Report
    stacks: bool = False


class Prepare(Message, frozen=True):
    """Standby `agent` starts the future ranks of `node`, while the current ones still train. Fields
    as in TakeOver. `own_state`: there are no records to fetch, since the ranks' framework copies
    its own state."""

    agent: Name
    node: Node
    ranks: Ranks
    incarnations: Numbers
    nodes: Count
    world_size: Count
    epoch: Number
    records: Addresses
    reason: Report
    nested: tuple[Source, ...] = ()
    own_state: bool = False


class TakeRecords(Message, frozen=True):
    """Ranks of `node` are to stand in for the ranks `away`: its agent puts their newest records
    where its ranks find them, and sends RecordsTaken. `sources`: the ranks that are away,
    and those that have stood in for them, in whose records theirs are nested."""

    node: Node
    interruption: Number
    away: Ranks
    sources: tuple[Source, ...]


class StandDown(Message, frozen=True):
    """Standby `agent` ends the processes it started for `node`, and waits again."""

    agent: Name
    node: Node
    reason: Report


class TakeOver(Message, frozen=True):
    """Standby `agent` takes over `node`: it fetches the node's records from the first of `records`
    that has them, and starts `ranks` with `incarnations` in a job of `nodes` nodes and `world_size`
    ranks. `epoch`, `generation` and `interruption`: see AgentJoined. `former`: the agent that keeps
    the node until the new ranks have their state, "" if the node is lost. It gets a copy.
    `restart`: it starts no ranks, since all ranks are restarted once it has the node. `nested`: as
    TakeRecords.sources, for ranks that were away; `own_state`: as in Prepare, for such ranks."""

    agent: Name
    node: Node
    ranks: Ranks
    incarnations: Numbers
    nodes: Count
    world_size: Count
    epoch: Number
    generation: Number
    interruption: Number
    records: Addresses
    reason: Report
    former: Name = ""
    restart: bool = False
    nested: tuple[Source, ...] = ()
    own_state: bool = False


class Fence(Message, frozen=True):
    """Agent `agent` is no longer part of the job: it ends its ranks and leaves, and whatever it
    sends is ignored. `moved`: nothing had failed there."""

    agent: Name
    node: Node
    reason: Report
    moved: bool = False


class KeepSwitch(Message, frozen=True):
    """How often recovery has been switched, for the next manager: faults are repaired if that is
    even. See AgentJoined.switches."""

    switches: Number


class KeepFaults(Message, frozen=True):
    """How many faults the container of `node` has had, for the next manager. See
    AgentJoined.faults."""

    node: Node
    had: Number


class KeepCondemned(Message, frozen=True):
    """The ranks of `node` on hardware that the advisor has condemned, for the next manager. See
    AgentJoined.condemned."""

    node: Node
    ranks: Ranks


class KeepRecords(Message, frozen=True):
    """The agent of `node` copies its ranks' records to the agents of the nodes `keepers`, which
    accept them at the addresses `at`."""

    node: Node
    keepers: Keepers
    at: Addresses


class SaveRecords(Message, frozen=True):
    """Every agent saves its ranks' records for the start of `step` to the dump `name`, and those of
    the lost nodes whose keeper it is. `lost`: (node, keeper) pairs. `dump`: see
    to_rank.AskPosition."""

    interruption: Number
    step: Step
    name: Name
    lost: tuple[tuple[Node, Node], ...]
    dump: Number = 0


class Seal(Message, frozen=True):
    """The agent of `node` seals the dump: `files` are (name, size, checksum). `dump`: see
    to_rank.AskPosition."""

    interruption: Number
    node: Node
    step: Step
    name: Name
    world_size: Count
    files: tuple[File, ...]
    dump: Number = 0


class AskSteps(Message, frozen=True):
    """Every agent reports the first step that no rank on its node has begun."""


RestartFault = Literal["rank", "script", "node"]


class RestartAll(Message, frozen=True):
    """The launchers stop and restart all ranks, and count that against --max_restarts.

    `epochs`: (node, epoch) pairs; a node past its epoch has been restarted already. `attempt`: the
    next epoch, the same on all nodes. `store`: where the agent that has it publishes the store in
    which the ranks of that attempt meet; under msrun they meet at its scheduler. `fault`: what it
    shows a launcher about the script: a rank died, all ranks were alive but stuck, or nothing,
    because a node was lost.
    """

    epochs: tuple[tuple[Node, Number], ...]
    reason: Report
    store: Address
    attempt: Number
    fault: RestartFault = "script"


# how a job ends that is not done: another start may or may not help; its state is saved, so that
# the next start goes on; every start would end like this one
Ending = Literal["failed", "saved", "useless"]


class GiveUp(Message, frozen=True):
    """Stop all ranks and leave; `reason` is the paragraph that the user reads, `ending` becomes the
    launchers' exit status."""

    reason: Report
    ending: Ending = "failed"


class End(Message, frozen=True):
    """The job is over; the manager may leave. `ending`: how, where it is not `ok`."""

    ok: bool
    reason: Report
    ending: Ending = "failed"


ToAgent = (
    Ack
    | TimeAsked
    | RegisterAgain
    | RegistrationRefused
    | UnderWay
    | Claim
    | RosterIs
    | Permit
    | Replace
    | Kill
    | Prepare
    | TakeRecords
    | StandDown
    | TakeOver
    | Fence
    | KeepSwitch
    | KeepFaults
    | KeepCondemned
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
    | to_rank.AskPosition
    | to_rank.RecordState
    | to_rank.CopyState
    | to_rank.SaveState
    | to_rank.SaveCheckpoint
    | to_rank.RenameCheckpoint
    | to_rank.Release
    | to_rank.Pause
    | to_rank.Continue
    | to_rank.Unprotected
    | to_rank.SwitchNics
    | to_rank.StressTest
    | to_rank.Profile
    | to_rank.ProbeProgress
    | to_rank.GroupsReady
    | to_rank.Inject
)
