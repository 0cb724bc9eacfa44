"""What the coordinator asks the shells to do. Orders to ranks travel through the agent of their
node."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core.repair import Plan


@dataclass(frozen=True)
class Pause:
    """Every rank leaves its collectives and waits; repeated requests with the same number are
    harmless."""

    pause: int
    reason: str


@dataclass(frozen=True)
class Replace:
    """Start a new process for `rank`."""

    rank: int
    incarnation: int
    reason: str


@dataclass(frozen=True)
class Kill:
    """End the process of `rank`, if it is still `incarnation`. `stacks`: first have it write down
    where its threads are."""

    rank: int
    incarnation: int
    reason: str
    stacks: bool = False


@dataclass(frozen=True)
class Prepare:
    """Standby `agent` starts what will be the ranks of `node`, while they train where they are;
    fields as in TakeOver."""

    agent: str
    node: int
    ranks: tuple[int, ...]
    incarnations: tuple[int, ...]
    nodes: int
    world_size: int
    epoch: int
    records: tuple[str, int]
    reason: str


@dataclass(frozen=True)
class StandDown:
    """Standby `agent` ends what it has started for `node`, and waits again."""

    agent: str
    node: int
    reason: str


@dataclass(frozen=True)
class TakeOver:
    """Standby `agent` becomes `node`: it fetches the node's records from `records`, if that is not
    ("", 0), and starts `ranks` as processes number `incarnations` in a job of `nodes` nodes and
    `world_size` ranks. `epoch`, `generation` and `pause`: see AgentJoined. `former`: the agent that
    has the node until its new ranks have their state, "" where it is lost."""

    agent: str
    node: int
    ranks: tuple[int, ...]
    incarnations: tuple[int, ...]
    nodes: int
    world_size: int
    epoch: int
    generation: int
    pause: int
    records: tuple[str, int]
    reason: str
    former: str = ""


@dataclass(frozen=True)
class Fence:
    """The agent process `agent` is no part of the job any more, whatever it says: it ends its ranks
    and leaves."""

    agent: str
    node: int
    reason: str


@dataclass(frozen=True)
class Admit:
    """`agent` is the agent of `node`, from now on or still."""

    agent: str
    node: int


@dataclass(frozen=True)
class Refuse:
    """`agent`, which has registered for `node`, is not admitted. Final."""

    agent: str
    node: int
    reason: str


@dataclass(frozen=True)
class Challenge:
    """Find out whether the agent of `node` lives, because another one has registered for the node:
    see AgentAnswered and AgentLost."""

    node: int


@dataclass(frozen=True)
class AskWho:
    """Ask `agents` to say again what they know."""

    agents: tuple[str, ...]


@dataclass(frozen=True)
class RequestVotes:
    """This manager claims its term, and knows the roster of `stamp`: ask `agents` to acknowledge
    that. See core.election."""

    agents: tuple[str, ...]
    stamp: tuple[int, int]


@dataclass(frozen=True)
class TakeCharge:
    """`votes` of `voters` agents have acknowledged this manager in `term`: it is in charge."""

    term: int
    votes: int
    voters: int


@dataclass(frozen=True)
class SendRoster:
    """Who may vote from now on. `members`: agent -> node, STANDBY for none. `hosts`: where managers
    may be found, the most likely first. Agents `whole` are sent all of it, `others` all but the
    members."""

    stamp: tuple[int, int]
    members: dict[str, int] = field(hash=False)
    hosts: tuple[str, ...]
    whole: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Resign:
    """Another manager is in charge: leave, the job goes on."""

    reason: str


@dataclass(frozen=True)
class KeepRecords:
    """The agent of `node` has a copy of its ranks' records kept by the agent of node `keeper`,
    which takes them at `at`."""

    node: int
    keeper: int
    at: tuple[str, int]


@dataclass(frozen=True)
class Rebuild:
    """All ranks make communicators of `generation` over the store at (host, port). `same`: by
    the same processes as the generation before, so that a library that can resume its own may do
    that."""

    pause: int
    generation: int
    store: tuple[str, int]
    same: bool = False


@dataclass(frozen=True)
class Restore:
    """Every rank brings its state to the start of `plan.step`."""

    pause: int
    generation: int
    plan: Plan


@dataclass(frozen=True)
class Resume:
    """Train on from the start of `step`."""

    pause: int
    generation: int
    step: int


@dataclass(frozen=True)
class SaveState:
    """Rank `rank` saves the replicated state at the start of `step` as part of the dump `name`.
    `stripes`: from its node's stripes, else from its memory."""

    pause: int
    generation: int
    rank: int
    step: int
    name: str
    stripes: bool


@dataclass(frozen=True)
class SaveRecords:
    """Every agent saves its ranks' records for the start of `step` as part of the dump `name`, and
    those of lost nodes that it keeps. `lost`: (node, keeper) pairs."""

    pause: int
    step: int
    name: str
    lost: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Seal:
    """The agent of `node` makes a dump of what has been written: `files` are (name, bytes,
    checksum)."""

    pause: int
    node: int
    step: int
    name: str
    world_size: int
    files: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class Release:
    """All ranks have finished their loop before `step`: nobody will be asked to repeat an earlier
    step."""

    step: int


@dataclass(frozen=True)
class RollCall:
    """Every rank says how far it has come; agents answer for those that do not."""

    call: int


@dataclass(frozen=True)
class AskSteps:
    """Every agent says which step nobody on its node has begun."""


@dataclass(frozen=True)
class Hold:
    """Every rank stops before `step`; one that has begun it says so. `passing`: for a moment, by
    the manager itself; it ends when another manager is in charge."""

    step: int
    passing: bool = False


@dataclass(frozen=True)
class Continue:
    """Ranks that are held go on, and nobody stops any more."""


@dataclass(frozen=True)
class Answer:
    """To whoever made `request`."""

    request: str
    ok: bool
    text: str


@dataclass(frozen=True)
class RestartAll:
    """All ranks are stopped and started anew by their launchers, which count it against
    --max_restarts.

    `epochs`: (node, epoch) pairs; a node that has gone past that epoch has been restarted already.
    `store`: where the scripts' process groups meet, as attempt number `attempt`; ("", 0) where the
    launchers' own rendezvous still has the same nodes.
    """

    epochs: tuple[tuple[int, int], ...]
    reason: str
    store: tuple[str, int] = ("", 0)
    attempt: int = 0


@dataclass(frozen=True)
class GiveUp:
    """Stop all ranks and leave with an error; `reason` is the paragraph that the user reads."""

    reason: str


@dataclass(frozen=True)
class End:
    """The job is over; the manager may leave."""

    ok: bool
    reason: str


@dataclass(frozen=True)
class Note:
    """A decision in words, for log and journal."""

    text: str


@dataclass(frozen=True)
class Closed:
    """An incident is over. `phases` in seconds."""

    incident: int
    strategy: str
    faults: tuple[str, ...]
    ranks: tuple[int, ...]
    step: int
    seconds: float
    phases: dict[str, float] = field(hash=False)  # seconds, in order of first entry
    tried: tuple[str, ...]
    began: float


Command = (
    Pause
    | Replace
    | Kill
    | Prepare
    | StandDown
    | TakeOver
    | Fence
    | Admit
    | Refuse
    | Challenge
    | AskWho
    | RequestVotes
    | TakeCharge
    | SendRoster
    | Resign
    | KeepRecords
    | Rebuild
    | Restore
    | Resume
    | SaveState
    | SaveRecords
    | Seal
    | Release
    | RollCall
    | AskSteps
    | Hold
    | Continue
    | Answer
    | RestartAll
    | GiveUp
    | End
    | Note
    | Closed
)
