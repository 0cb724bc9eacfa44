"""Events of a job: messages from agents, ranks and operators (taskd.messages), and what the manager
detects by itself.

An event from any other incarnation of a rank than the current one is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.core.demand import Demand
from taskd.messages import from_agent, from_operator, from_rank
from taskd.messages.values import Voting


@dataclass(frozen=True)
class AgentLost:
    """The agent has been silent for longer than the limit given in `why`."""

    node: int
    why: str


@dataclass(frozen=True)
class AgentEnded:
    """The process of an agent of the roster that has not registered with this manager has ended, as
    its machine says; see AskMachines."""

    agent: str
    why: str


@dataclass(frozen=True)
class StandbyLost:
    """A standby has left or is silent, as given in `why`."""

    agent: str
    why: str


@dataclass(frozen=True)
class DeviceLevel:
    """The fault level of the device of `rank`, whatever its process, by the rule in `text`.
    `level`: its name, "" for nothing new. `demand`: what the level requires, and `why`. `usable`:
    whether a device of that level may get another process. `unusable`: why this device gets no
    further process, else "". `resetting`: why it gets none before a reset, else "". `request`: see
    NodeSubHealthy."""

    request: str
    rank: int
    text: str
    level: str = ""
    demand: Demand = Demand.NOTHING
    usable: bool = True
    why: str = ""
    unusable: str = ""
    resetting: str = ""


@dataclass(frozen=True)
class SubHealthyStrategySet:
    """What to do about sub-healthy nodes from now on: one of ladder.SUB_HEALTHY."""

    strategy: str


@dataclass(frozen=True)
class AdvisorConnected:
    """The advisor (core/advice.py) takes part in this job, or has left it if `on` is false."""

    on: bool


@dataclass(frozen=True)
class AdvisorSignal:
    """A signal from the advisor, in its own vocabulary. `uuid`: the fault that it handles. `kind`:
    its name for the signal. `ranks`: the faulty ranks with the documented types of their faults.
    `extra`: details of the strategy. `nodes`: node ranks. `timeout`: seconds that a pause may take,
    0 if not given."""

    uuid: str
    kind: str
    actions: tuple[str, ...] = ()
    ranks: tuple[tuple[int, int], ...] = ()
    strategy: str = ""
    extra: str = ""
    nodes: tuple[int, ...] = ()
    timeout: float = 0.0


@dataclass(frozen=True)
class ProfileSwitched:
    """Profile these ranges (numbers of to_rank.RANGES); `by` requested it."""

    ranges: tuple[int, ...]
    by: str


@dataclass(frozen=True)
class AdvisorTask:
    """The advisor orders a task while all ranks are paused: a switch of network cards (`ranks`: to
    the backup card or back) or stress tests (`tests` by rank). The other field is empty."""

    ranks: tuple[tuple[int, bool], ...] = ()
    tests: tuple[tuple[int, tuple[int, ...]], ...] = ()


@dataclass(frozen=True)
class FormerLost:
    """While `node` moves to another agent, its former `agent` no longer responds."""

    node: int
    agent: str
    why: str


@dataclass(frozen=True)
class VoterStated:
    """A connected agent reports its voting state: the last term and manager that it acknowledged,
    its newest roster (`members`, empty where it has only the stamp), and whether it has a manager
    (`content`). See core.election."""

    agent: str
    term: int
    manager: str
    stamp: tuple[int, int]
    members: dict[str, Voting] = field(hash=False)
    content: bool


@dataclass(frozen=True)
class AgentVoted:
    """Whether the agent acknowledges this manager's claim of `term`."""

    agent: str
    term: int
    granted: bool


@dataclass(frozen=True)
class RosterKept:
    """The agent has stored the roster of `stamp`."""

    agent: str
    stamp: tuple[int, int]


@dataclass(frozen=True)
class AgentDisconnected:
    """The connection over which the agent reported its voting state has ended."""

    agent: str


@dataclass(frozen=True)
class OtherManager:
    """Another manager is in charge of `term`."""

    term: int


@dataclass(frozen=True)
class AgentAnswered:
    """The agent of `node` is alive: it has answered a Challenge."""

    node: int


@dataclass(frozen=True)
class StepsWaited:
    """The ranks of a node have come from step `before` to `step`. `taken`: seconds of each of these
    steps; `waited`: how much of it each rank has waited for others."""

    ranks: tuple[int, ...]
    before: int
    step: int
    taken: float
    waited: tuple[float, ...]


@dataclass(frozen=True)
class Tick:
    """Time has passed: check the deadlines."""


Event = (
    AgentLost
    | AgentEnded
    | StandbyLost
    | DeviceLevel
    | SubHealthyStrategySet
    | AdvisorConnected
    | AdvisorSignal
    | AdvisorTask
    | FormerLost
    | VoterStated
    | AgentVoted
    | RosterKept
    | AgentDisconnected
    | OtherManager
    | AgentAnswered
    | StepsWaited
    | Tick
    | from_agent.AgentJoined
    | from_agent.AgentLeft
    | from_agent.StandbyJoined
    | from_agent.NodeTaken
    | from_agent.RecordsTaken
    | from_agent.AskedToLeave
    | from_agent.NodePrepared
    | from_agent.PreparationFailed
    | from_agent.RankDied
    | from_agent.RankEnded
    | from_agent.RankBusy
    | from_agent.RankStalled
    | from_agent.ProgressReport
    | from_agent.StepsBegun
    | from_agent.SchedulerDied
    | from_agent.RecordsSaved
    | from_agent.Sealed
    | from_operator.PauseRequested
    | from_operator.ContinueRequested
    | from_operator.RecoverySwitched
    | from_operator.SaveRequested
    | from_operator.NodeSubHealthy
    | from_operator.NicSwitchRequested
    | from_operator.StressTestRequested
    | from_operator.ProfileRequested
    | ProfileSwitched
    | from_rank.RankJoined
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
)
