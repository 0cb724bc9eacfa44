"""Where the ranks are and how fast they go, from the agents' heartbeats.

A heartbeat only replaces its node's previous one; nearly everything else is computed on request,
every few seconds, whatever the size of the job. Speed is that of one node, as all go in lockstep:
between two of its steps, by the times at which it came to them, so it does not matter when
heartbeats come.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain

from taskd.core.events import StepsWaited
from taskd.messages.node_progress import GONE, PHASES, SETUP, STOPPED, NodeProgress
from taskd.messages.to_operator import LISTED, WORST

# An attempt that takes this many times as long as the median's is slow. The usual time follows
# the longest attempts, which differ by a tenth from rank to rank on a busy machine.
SLOW = 1.25
WINDOW = 60.0  # seconds over which the rate is measured
WAITS = 5.0  # seconds over which it is measured how long ranks have waited


@dataclass(frozen=True)
class Heard:
    """A node's last heartbeat: when it came, the node's ranks, and its content."""

    at: float
    ranks: tuple[int, ...]
    said: NodeProgress


@dataclass(frozen=True)
class Seen:
    """The job according to the last heartbeats. `step`, `highest`: -1 before the first one. `came`:
    when the last rank came to `step`. `usual`: of the median rank, in seconds, 0 if not known.
    `heard`: when the oldest heartbeat came. `slow`: (rank, node, seconds), the slowest first.
    `absent`: ranks without a process, or stopped by a signal. `memory`: bytes that the records of a
    node take, of the node where they take most."""

    step: int = -1
    highest: int = -1
    came: float = 0.0
    total: int = 0
    usual: float = 0.0
    heard: float = 0.0
    phases: dict[str, int] = field(default_factory=dict)
    slow: tuple[tuple[int, int, float], ...] = ()
    absent: tuple[int, ...] = ()
    memory: int = 0


@dataclass
class Progress:
    """`nodes`: by number, with the ranks with which each has joined."""

    nodes: dict[int, Heard] = field(default_factory=dict)
    _waits: dict[int, Heard] = field(default_factory=dict)  # since when waits are measured
    # of the node whose speed is the job's
    _node: int = -1
    _came: deque[tuple[float, int]] = field(default_factory=deque)  # when it came to which step
    _late: float = 0.0  # by how much its step takes longer than usual, so far

    def heard(
        self, node: int, ranks: tuple[int, ...], said: NodeProgress, now: float
    ) -> StepsWaited | None:
        """A heartbeat of `node`. One that does not fit its ranks is ignored. Returns every few
        seconds how long its ranks have waited for others."""
        if not said.fits(len(ranks)):
            return None
        new = self.nodes[node] = Heard(now, ranks, said)
        if not ranks:
            return None
        if self._node not in self.nodes:
            self._node = node
            self._came.clear()
        if node == self._node:
            self._note(new)
        return self._waited(node, new)

    def drop(self, node: int) -> None:
        """The node is lost."""
        self.nodes.pop(node, None)
        self._waits.pop(node, None)

    # -- speed -------------------------------------------------------------------------------------

    def _note(self, heard: Heard) -> None:
        said, step, came = heard.said, heard.said.lowest, self._came
        if came and step < came[-1][1]:
            came.clear()  # the job has gone back
        # the first steps of a process take longer: they may compile
        if (not came or step > came[-1][1]) and all(said.usual):
            came.append((heard.at - said.age, step))
        while len(came) > 2 and came[-1][0] - came[0][0] > WINDOW:
            came.popleft()
        if len(came) > 1:
            (first, low), (last, high) = came[0], came[-1]
            mean = (last - first) / (high - low)
            self._late = max(said.age - max(mean, max(said.usual) / 1e6), 0.0)

    @property
    def rate(self) -> float:
        """Steps per minute over the last minute; 0 if unknown. It falls while a step takes longer
        than usual."""
        if len(self._came) < 2:
            return 0.0
        (first, low), (last, high) = self._came[0], self._came[-1]
        return (high - low) * 60.0 / max(last - first + self._late, 1e-9)

    def stood(self, seconds: float) -> None:
        """The job has stood still so long, and goes on: that says nothing about its speed."""
        self._came = deque((at + seconds, step) for at, step in self._came)
        self._late = 0.0
        self._waits.clear()

    # -- waits -------------------------------------------------------------------------------------

    def _waited(self, node: int, new: Heard) -> StepsWaited | None:
        old = self._waits.get(node)
        if old is not None and (
            old.ranks != new.ranks
            or old.said.incarnations != new.said.incarnations
            or new.said.lowest < old.said.lowest
        ):
            old = None
        if old is None:
            self._waits[node] = new
            return None
        steps = new.said.lowest - old.said.lowest
        seconds = (new.at - new.said.age) - (old.at - old.said.age)
        if not new.said.waited or not steps or seconds < WAITS:
            return None
        self._waits[node] = new
        waited = zip(old.said.waited, new.said.waited, strict=True)
        each = tuple(max(after - before, 0) / 1e6 / steps for before, after in waited)
        return StepsWaited(new.ranks, old.said.lowest, new.said.lowest, seconds / steps, each)

    # -- the whole job -----------------------------------------------------------------------------

    def seen(self) -> Seen:
        nodes = [(n, heard) for n, heard in sorted(self.nodes.items()) if heard.ranks]
        if not nodes:
            return Seen()
        all_said = [heard.said for _, heard in nodes]
        known = sorted(filter(None, chain.from_iterable(p.usual for p in all_said)))
        middle = known[len(known) // 2] if known else 0
        limit = middle * SLOW
        phases = b"".join(p.phases for p in all_said)
        slow = nlargest(
            WORST,
            (
                (time, -rank, node)
                for node, heard in nodes
                if limit and max(heard.said.usual) > limit
                for rank, time in zip(heard.ranks, heard.said.usual, strict=True)
                if time > limit
            ),
        )
        absent = (
            rank
            for _, heard in nodes
            if GONE in heard.said.phases or STOPPED in heard.said.phases
            for rank, phase in zip(heard.ranks, heard.said.phases, strict=True)
            if phase in (GONE, STOPPED)
        )
        begun = [h for _, h in nodes if h.said.phases.strip(bytes((SETUP,)))] or [
            h for _, h in nodes
        ]
        lowest = [(h.said.lowest, h) for h in begun]
        step = min(low for low, _ in lowest)
        return Seen(
            step,
            max(max(p.steps) for p in all_said),
            max(h.at - h.said.age for low, h in lowest if low == step),
            max(p.total for p in all_said),
            middle / 1e6,
            min(heard.at for _, heard in nodes),
            {phase_name(p): n for p in range(256) if (n := phases.count(p))},
            tuple((-rank, node, time / 1e6) for time, rank, node in slow),
            tuple(rank for rank, _ in zip(absent, range(LISTED), strict=False)),
            max(p.memory for p in all_said),
        )


def phase_name(phase: int) -> str:
    return PHASES[phase] if phase < len(PHASES) else str(phase)
