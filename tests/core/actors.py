"""Who is in the world: ranks and nodes, and what each remembers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from taskd.core import commands as c
from taskd.core.snapshots import PAUSED as PAUSED_RECORD
from taskd.messages import from_agent, from_rank, to_agent, to_operator
from taskd.messages.values import Position
from tests.core.histories import after_steps

SETUP, TRAINING, HELD, PAUSED, FINISHED, ENDED = (
    "setup",
    "training",
    "paused",
    "standing",
    "finished",
    "ended",
)
# makes no progress: and says nothing any more, and still answers progress probes
HUNG, LOOPING = "hung", "looping"
COMPUTING, UPDATED, COMMITTED = 0, 1, 2
PATIENCE = 15.0  # seconds after which the collective library gives up
LIMIT = 4.0  # seconds that a rank may stay in one place
FIRST = 600.0  # in its first step
GUARDED = (
    from_agent.RankDied
    | from_rank.RankInterrupted
    | from_agent.RankBusy
    | from_rank.RankReady
    | from_rank.RankRebuilt
    | from_rank.RankRestored
    | from_rank.StepCommitted
)

# orders that nobody in here carries out
UNHEARD = (
    c.Note | to_operator.Answer | to_agent.KeepRecords | c.Admit | c.Refuse | c.Challenge | c.Resign
)


@dataclass
class Rank:
    number: int
    node: int
    incarnation: int = 0
    alive: bool = True
    mode: str = SETUP
    blank: bool = False  # a replacement without state
    step: int = 0
    stage: int = COMPUTING
    entered: bool = False  # its part of the step is done, it waits in the collective
    clean: bool = True  # what is in memory is the state at the start of `step`
    spoiled: bool = False  # a page was lost since the last restore: it does not train
    told: bool = False  # the first commit after a resume
    interrupted: int = 0
    built_at: int = 0  # number of the interruption that the present communicators were built in
    rebuilding: int = 0
    left: Position | None = None
    immortal: bool = False
    recorded: int = -1  # this step's record is final already: the rank was paused before it
    begun: bool = False  # its loop
    since: float = 0.0  # when the step was entered
    beat: float = 0.0  # when it last made progress
    turn: int = 0  # numbers what it does next: the last that was decided
    steps: int = 0  # committed by this process
    slow: float = 0.0  # until then it is in user code, within its limit
    cpu: float = 0.0
    bad: int = 0  # a memory page that fails whenever the step is computed
    unfit: str = ""
    record: Position | None = None  # what another node knows of it, when its own is lost
    deaf: bool = False  # it, or a message to or from it, was late or lost in an incident
    died: float = 0.0
    quit: bool = False  # its script has ended by itself, too early
    # what this process has said against itself
    evidence: Counter[str] = field(default_factory=Counter)

    def position(self) -> Position:
        committed = self.stage == COMMITTED  # between two steps: `step` is the next one
        kept = after_steps(self.step - committed, committed=committed)
        if committed and self.recorded == self.step:
            kept.write(self.step, PAUSED_RECORD)
        clean = self.step if self.stage != UPDATED and self.clean else None
        return kept.position(self.step, clean)

    def overdue(self, now: float) -> bool:
        stays = self.mode in (TRAINING, HUNG, LOOPING)
        return stays and now >= max(self.beat + (LIMIT if self.steps else FIRST), self.slow) - 1e-9


@dataclass
class Node:
    number: int
    ranks: list[Rank]
    epoch: int = 0
    generation: int = 0
    protected: bool = False
    interruption: int = 0
    pause: int | None = None  # ranks stop before this step
    passing: bool = False  # as long as the present manager is there
    gone: bool = False  # nobody is there
    cut: bool = False  # nothing is heard of it, and it hears nothing
    agent: str = ""
    sent: float = 0.0  # arrival of the last message, either way
    received: float = 0.0
    joined: int = -1  # the manager that has heard of it


@dataclass
class Former:
    """What a node was before it has moved, as long as it may be put back."""

    assignee: str
    node: dict[str, Any]
    ranks: list[dict[str, Any]]
    lost: bool = False
