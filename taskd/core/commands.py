"""What the coordinator asks the shells to do: what is said to agents, ranks and operators
(taskd.messages), and what the manager does by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.messages import to_agent, to_operator, to_rank


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
class AskToRegister:
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
    Admit
    | Refuse
    | Challenge
    | AskToRegister
    | RequestVotes
    | TakeCharge
    | SendRoster
    | Resign
    | Note
    | Closed
    | to_rank.Interrupt
    | to_rank.Rebuild
    | to_rank.Restore
    | to_rank.Resume
    | to_rank.SaveState
    | to_rank.Release
    | to_rank.ProbeProgress
    | to_rank.Pause
    | to_rank.Continue
    | to_agent.Replace
    | to_agent.Kill
    | to_agent.Prepare
    | to_agent.StandDown
    | to_agent.TakeOver
    | to_agent.Fence
    | to_agent.KeepRecords
    | to_agent.SaveRecords
    | to_agent.Seal
    | to_agent.AskSteps
    | to_agent.RestartAll
    | to_agent.GiveUp
    | to_agent.End
    | to_operator.Answer
)
