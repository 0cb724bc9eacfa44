"""The ranks and nodes of the world, and their state."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from taskd.core import commands as c
from taskd.core.job.snapshots import PAUSED as PAUSED_RECORD
from taskd.messages import from_agent, from_rank, to_operator, to_rank
from taskd.messages.values import Position
from tests.core.histories import after_steps

if TYPE_CHECKING:
    from tests.core.world import World

SETUP, TRAINING, HELD, PAUSED = "setup", "training", "paused", "standing"
FINISHED, ENDED = "finished", "ended"
# no progress: HUNG does not answer progress probes, LOOPING still does
HUNG, LOOPING = "hung", "looping"
COMPUTING, UPDATED, COMMITTED = 0, 1, 2
PATIENCE = 15.0  # seconds after which the collective library gives up
LIMIT = 4.0  # seconds that a rank may stay in one place
FIRST = 600.0  # in its first step
GUARDED = (
    from_agent.RankDied | from_agent.RankBusy | from_rank.RankInterrupted | from_rank.RankReady
    | from_rank.RankRebuilt | from_rank.RankRestored | from_rank.StepCommitted
)  # fmt: skip
SAVES = to_rank.RecordState | to_rank.CopyState | to_rank.SaveState
# commands that the world does not carry out
UNHEARD = (
    c.Note | c.Entry | c.MarkSubHealthy | c.AskForStandby | to_operator.Answer | c.Refuse
    | c.Challenge | c.Resign
)  # fmt: skip


@dataclass
class Rank:
    number: int
    node: int
    incarnation: int = 0
    # a node that is given to a standby twice has two with the same incarnation
    process: object = field(default_factory=object, repr=False)
    alive: bool = True
    mode: str = SETUP
    stateless: bool = False  # a replacement without state
    step: int = 0
    stage: int = COMPUTING
    entered: bool = False  # its part of the step is done, it waits in the collective
    clean: bool = True  # its memory holds the state at the start of `step`
    spoiled: bool = False  # a page was lost since the last restore: it does not train
    told: bool = False  # the first commit after a resume is reported
    interrupted: int = 0
    built_at: int = 0  # number of the interruption that the current communicators were built in
    rebuilding: int = 0
    left: Position | None = None
    replica_set: int = 0
    whole: int = -1  # the step whose state it has recorded for its replicas
    immortal: bool = False
    copy: int = 0  # the dump for which it has a copy of its state
    recorded: int = -1  # this step's record is final already: the rank was paused before it
    begun: bool = False  # its loop
    released: bool = False  # past its loop: it takes no orders any more
    since: float = 0.0  # when the step was entered
    beat: float = 0.0  # when it last made progress
    turn: int = 0  # number of its last scheduled action
    steps: int = 0  # committed by this process
    slow: float = 0.0  # until then it is in user code, within its limit
    cpu: float = 0.0
    bad: int = 0  # a memory page that fails whenever the step is computed
    unfit: str = ""
    record: Position | None = None  # its record on the keeper, once its node is lost
    deaf: bool = False  # it, or a message to or from it, was late or lost in an incident
    died: float = 0.0
    quit: bool = False  # its script has exited too early
    left_loop: bool = False  # and had left its loop
    ordered: bool = False  # it hangs in an order of a repair
    # faults that this process has reported
    evidence: Counter[str] = field(default_factory=Counter)
    # elastic training (chains.py): of its communicators, and (generation, who stood in, the shares
    # computed) by step; the state of each share, by rank; `away`: its agent knows that it is
    generation: int = 0
    stand_ins: dict[int, int] = field(default_factory=dict)
    did: dict[int, tuple[int, dict[int, int], frozenset[int]]] = field(default_factory=dict)
    private: dict[int, int] = field(default_factory=dict)
    away: bool = False

    def position(self) -> Position:
        committed = self.stage == COMMITTED  # between two steps: `step` is the next one
        kept = after_steps(self.step - committed, committed=committed)
        if committed and self.recorded == self.step:
            kept.write(self.step, PAUSED_RECORD)
        clean = self.step if self.stage != UPDATED and self.clean else None
        return kept.position(self.step, clean, replica_set=self.replica_set)

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
    passing: bool = False  # the pause ends with the current manager
    for_move: bool = False  # and is for a move
    gone: bool = False  # its agent is dead
    between: bool = False  # its processes are gone, those of a restart are not started yet
    cut: bool = False  # partitioned: it neither sends nor receives
    agent: str = ""
    sent: float = 0.0  # arrival of the last message, either way
    received: float = 0.0
    joined: int = -1  # the manager that it has registered with
    keepers: tuple[int, ...] = ()  # the nodes that keep its records
    switches: int = 0  # of recovery
    condemned: tuple[int, ...] = ()  # see AgentJoined
    faults: int = 0  # of its container
    kept_by: tuple[str, ...] = ()  # their agents
    unkept: float | None = None  # since when that agent has no node
    moves_to: str = ""  # the standby that it was given to, as its former agent knows
    moving: bool = False  # its newest interruption came in a pause for a move
    former: str = ""  # the agent that a standby has it from
    # who stands in for whom, since its ranks last resumed, in which generation; and as ordered
    stand_ins: tuple[tuple[int, int], ...] = ()
    resumed: int = 0
    building: tuple[tuple[int, int], ...] = ()
    # records (chains.py): of its ranks; of ranks that these stand in for; of other nodes' ranks
    files: dict[int, Any] = field(default_factory=dict)
    taken: dict[int, Any] = field(default_factory=dict)
    copies: dict[int, dict[int, Any]] = field(default_factory=dict)
    # by node and rank, the generation in which the last came
    since: dict[tuple[int, int], int] = field(default_factory=dict)


@dataclass
class Former:
    """The state of a node that moves, as the standby takes it, as long as it may be put back."""

    assignee: str
    manager: int  # that began the move
    node: dict[str, Any] = field(default_factory=dict)
    ranks: list[dict[str, Any]] = field(default_factory=list)
    lost: bool = False
    # its ranks were away, so there is no former agent: the incarnations that these had last
    grows: tuple[int, ...] = ()

    def keep(self, node: Node) -> None:
        self.node, self.ranks = dict(node.__dict__), [dict(r.__dict__) for r in node.ranks]


class Part:
    """Of the world."""

    def __init__(self, world: World) -> None:
        self.world, self.chance, self.counts = world, world.chance, world.counts
        self.after, self.later, self.likely = world.after, world.later, world.likely
        self.say, self.tell = world.say, world.tell
