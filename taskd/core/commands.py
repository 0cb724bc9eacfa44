"""What the coordinator asks the shells to do: what is said to agents, ranks and operators
(taskd.messages), and what the manager does by itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.messages import to_agent, to_operator, to_rank


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
    Note
    | Closed
    | to_rank.Pause
    | to_rank.Rebuild
    | to_rank.Restore
    | to_rank.Resume
    | to_rank.SaveState
    | to_rank.Release
    | to_rank.RollCall
    | to_rank.Hold
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
