"""What can happen to a job: what agents, ranks and operators say (taskd.messages), and what the
manager finds out by itself.

An event of another incarnation of a rank than the present one is late and changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core.demand import Demand
from taskd.messages import from_agent, from_operator, from_rank


@dataclass(frozen=True)
class AgentLost:
    """Nothing has been heard of the agent for longer than the limit; `why` says which limit."""

    node: int
    why: str


@dataclass(frozen=True)
class StandbyLost:
    """A standby has left, or nothing is heard of it; `why` says which."""

    agent: str
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
class FormerLost:
    """While `node` moves to another agent: nothing is heard any more of `agent`, which has had
    it."""

    node: int
    agent: str
    why: str


@dataclass(frozen=True)
class VoterStated:
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
    AgentLost
    | StandbyLost
    | DeviceLevel
    | FormerLost
    | VoterStated
    | AgentVoted
    | RosterKept
    | AgentDisconnected
    | OtherManager
    | AgentAnswered
    | Tick
    | from_agent.AgentJoined
    | from_agent.AgentLeft
    | from_agent.StandbyJoined
    | from_agent.NodeTaken
    | from_agent.NodePrepared
    | from_agent.PreparationFailed
    | from_agent.RankDied
    | from_agent.RankEnded
    | from_agent.RankBusy
    | from_agent.RankStalled
    | from_agent.ProgressReport
    | from_agent.StepsBegun
    | from_agent.RecordsSaved
    | from_agent.Sealed
    | from_operator.PauseRequested
    | from_operator.ContinueRequested
    | from_operator.RecoverySwitched
    | from_operator.NodeSubHealthy
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
)
