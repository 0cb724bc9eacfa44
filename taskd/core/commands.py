"""Commands from the coordinator to the shells: messages to agents, ranks and operators
(taskd.messages), and actions of the manager itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from taskd.messages import to_agent, to_operator, to_rank
from taskd.messages.values import Address, Results, Voting


@dataclass(frozen=True)
class Admit:
    """Record `agent` as the agent of `node`. Idempotent."""

    agent: str
    node: int


@dataclass(frozen=True)
class Refuse:
    """Refuse the registration of `agent` for `node`. Final."""

    agent: str
    node: int
    reason: str


@dataclass(frozen=True)
class Challenge:
    """Find out whether the agent of `node` is alive, because another one has registered for the
    node: see AgentAnswered and AgentLost."""

    node: int


@dataclass(frozen=True)
class AskForStandby:
    """Request a standby for `node`, or withdraw the request if `wanted` is false."""

    node: int
    wanted: bool


@dataclass(frozen=True)
class MarkSubHealthy:
    """Mark the machine of `node` as sub-healthy in the cluster. `why`: the reason, or ""."""

    node: int
    why: str


@dataclass(frozen=True)
class AskToRegister:
    """Order `agents` to register again."""

    agents: tuple[str, ...]


@dataclass(frozen=True)
class RequestVotes:
    """Claim this manager's term, with the roster of `stamp`, and ask `agents` to acknowledge it.
    See core.election."""

    agents: tuple[str, ...]
    stamp: tuple[int, int]


@dataclass(frozen=True)
class TakeCharge:
    """Take charge: `votes` of `voters` agents have acknowledged this manager in `term`."""

    term: int
    votes: int
    voters: int


@dataclass(frozen=True)
class AskMachines:
    """Find out whether these agents, which a new manager waits for, have ended: ask their machines,
    at the agents' addresses."""

    agents: dict[str, Address] = field(hash=False)


@dataclass(frozen=True)
class SendRoster:
    """Send the new roster. `hosts`: where managers may be found, the most likely first. Agents in
    `whole` get all of it, `others` all but the members."""

    stamp: tuple[int, int]
    members: dict[str, Voting] = field(hash=False)
    hosts: tuple[str, ...]
    whole: tuple[str, ...]
    others: tuple[str, ...]


@dataclass(frozen=True)
class Resign:
    """Exit, because another manager is in charge; the job continues."""

    reason: str


@dataclass(frozen=True)
class ConnectAdvisor:
    """Connect to the advisor (core/advice.py): this manager is in charge."""


@dataclass(frozen=True)
class TellAdvisor:
    """Report to the advisor. `call`: the report's name in the advisor's vocabulary. `ranks`: the
    faulty ranks with the documented types of their faults. `strategies`: the possible ones;
    `strategy`: the one whose result is reported. `tests`: results of stress tests by rank, as in
    from_rank.TaskDone."""

    call: str
    code: int = 0
    text: str = ""
    ranks: tuple[tuple[int, int], ...] = ()
    strategies: tuple[str, ...] = ()
    strategy: str = ""
    tests: tuple[tuple[int, Results], ...] = ()


@dataclass(frozen=True)
class Note:
    """Write a decision to log and journal. `journaled`: the journal has a separate entry for it."""

    text: str
    journaled: bool = False


@dataclass(frozen=True)
class Entry:
    """Write an entry of this `kind` into the journal; docs/journal.md has the fields of each."""

    kind: str
    data: dict[str, Any] = field(hash=False)


@dataclass(frozen=True)
class Closed:
    """Report a closed incident. `phases` in seconds. `reached`: the highest step that any rank had
    reached. `rounds`: when each rank passed each stage, see incident.times."""

    incident: int
    strategy: str
    faults: tuple[str, ...]
    ranks: tuple[int, ...]
    step: int
    seconds: float
    phases: dict[str, float] = field(hash=False)  # seconds, in order of first entry
    tried: tuple[str, ...]
    began: float
    reached: int = -1
    rounds: tuple[dict[str, Any], ...] = field(default=(), hash=False)


Command = (
    Admit
    | Refuse
    | Challenge
    | AskToRegister
    | RequestVotes
    | TakeCharge
    | AskMachines
    | SendRoster
    | Resign
    | ConnectAdvisor
    | TellAdvisor
    | Note
    | MarkSubHealthy
    | AskForStandby
    | Entry
    | Closed
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
    | to_rank.ProbeProgress
    | to_rank.Pause
    | to_rank.Continue
    | to_rank.Unprotected
    | to_rank.SwitchNics
    | to_rank.StressTest
    | to_rank.Profile
    | to_rank.GroupsReady
    | to_agent.Replace
    | to_agent.Kill
    | to_agent.Prepare
    | to_agent.TakeRecords
    | to_agent.StandDown
    | to_agent.TakeOver
    | to_agent.Fence
    | to_agent.KeepSwitch
    | to_agent.KeepFaults
    | to_agent.KeepCondemned
    | to_agent.KeepRecords
    | to_agent.SaveRecords
    | to_agent.Seal
    | to_agent.AskSteps
    | to_agent.RestartAll
    | to_agent.GiveUp
    | to_agent.End
    | to_operator.Answer
)
