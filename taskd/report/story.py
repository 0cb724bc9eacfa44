"""What a journal tells of a job, before anything is worked out from it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field

import numpy as np

# What happens to a rank in a round, in order, and the phase that ends with it.
EVENTS = {
    "interrupted": "INTERRUPT",
    "ready": "REPLACE",
    "rebuilt": "REBUILD",
    "restored": "RESTORE",
    "committed": "RESUME",
}
PHASES = (
    "DETECT",
    "INTERRUPT",
    "CONSULT",
    "RESCHEDULE",
    "DECIDE",
    "REPLACE",
    "REBUILD",
    "RESTORE",
    "RESUME",
    "DUMP",
    "FAILED",
)
REPAIRED, RESTARTED, ENDED, OPEN = "repaired", "restarted", "ended", "not over"


@dataclass(frozen=True)
class Round:
    """When each of `ranks` did what, in ms after the incident began; NaN where it did not. Of a
    large job the journal has the last ranks alone: `total` is how many there are."""

    number: int
    strategy: str
    began: float
    total: int
    ranks: np.ndarray
    times: dict[str, np.ndarray]
    first: dict[str, float]  # of all ranks, the first moment of each event


@dataclass(frozen=True)
class Line:
    """Something that was said. `at`: Unix time."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True)
class Incident:
    """`entered`: the phases in order, as (round, phase, Unix time). `usual`: seconds of a
    step before it, 0 if not known. `hosts`: the addresses of the nodes' machines when it began."""

    number: int
    began: float
    seconds: float
    result: str
    strategy: str
    faults: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    step: int = -1
    reached: int = -1
    phases: dict[str, float] = field(default_factory=dict)
    tried: tuple[str, ...] = ()
    rounds: tuple[Round, ...] = ()
    entered: tuple[tuple[int, str, float], ...] = ()
    lines: tuple[Line, ...] = ()
    unsaid: int = 0  # lines that are left out
    usual: float = 0.0
    hosts: dict[int, str] = field(default_factory=dict)

    @property
    def ended(self) -> float:
        return self.began + self.seconds


@dataclass(frozen=True)
class Sample:
    """Where the ranks were. `slow`: (rank, node, seconds) of the slowest."""

    at: float
    step: int
    highest: int
    rate: float
    usual: float
    slow: tuple[tuple[int, int, float], ...] = ()


@dataclass(frozen=True)
class Places:
    """Which node has which ranks."""

    firsts: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    per_node: int = 0

    def of(self, rank: int) -> tuple[int, int]:
        """The node of a rank and its place on it; -1 for a node that is not known."""
        at = bisect_right(self.firsts, rank) - 1
        if at >= 0 and rank < self.firsts[at] + self.counts[at]:
            return self.nodes[at], rank - self.firsts[at]
        if self.per_node > 0:
            return rank // self.per_node, rank % self.per_node
        return -1, rank


@dataclass
class Story:
    """`began`, `last`: the first and the last entry. `protected`: when every rank was in its loop,
    after each start. `paused`: from, to. `separated`: device -> fault code. `left`: why the last
    manager left. `end`: ok, reason, time."""

    job: str = ""
    version: str = ""
    nodes: int = 0
    ranks: int = 0
    began: float = 0.0
    last: float = 0.0
    ladder: tuple[str, ...] = ()
    total: int = 0
    protected: list[float] = field(default_factory=list)
    restarts: list[Line] = field(default_factory=list)
    paused: list[tuple[float, float]] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)  # outside of incidents
    unsaid: int = 0
    managers: int = 0
    gaps: int = 0
    places: Places = field(default_factory=Places)
    hosts: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)
    separated: dict[str, str] = field(default_factory=dict)
    missing_start: bool = False  # its oldest files are gone
    left: str = ""
    end: tuple[bool, str, float] | None = None
