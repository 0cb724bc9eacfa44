"""Where the ranks are and how fast they go, from the agents' heartbeats.

A heartbeat only replaces its node's previous one; everything else is computed on request, every few
seconds, whatever the size of the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nlargest
from itertools import chain

from taskd.messages.from_agent import GONE, PHASES, NodeProgress
from taskd.messages.to_operator import LISTED, WORST, RankSeen

# An attempt that takes this many times as long as the median's is slow. The usual time follows
# the longest attempts, which differ by a tenth from rank to rank on a busy machine.
SLOW = 1.25
WINDOW = 60.0  # seconds over which the rate is measured


@dataclass(frozen=True)
class Seen:
    """The job according to the last heartbeats. `step`, `highest`: -1 before the first one.
    `usual`: of the median rank, in seconds, 0 if not known. `heard`: when the oldest heartbeat
    came."""

    step: int = -1
    highest: int = -1
    total: int = 0
    usual: float = 0.0
    heard: float = 0.0
    phases: dict[str, int] = field(default_factory=dict)
    slow: tuple[RankSeen, ...] = ()  # the slowest first
    listed: tuple[RankSeen, ...] = ()


@dataclass
class Progress:
    """`ranks` of each node as it has joined with them."""

    _nodes: dict[int, tuple[float, tuple[int, ...], NodeProgress]] = field(default_factory=dict)
    _steps: list[tuple[float, int]] = field(default_factory=list)  # times, and steps then

    def heard(self, node: int, ranks: tuple[int, ...], said: NodeProgress, now: float) -> None:
        """A heartbeat of `node`. One that does not fit its ranks is ignored."""
        if len(said.steps) == len(said.phases) == len(said.usual) == len(ranks):
            self._nodes[node] = now, ranks, said

    def drop(self, node: int) -> None:
        """The node is lost."""
        self._nodes.pop(node, None)

    def seen(self) -> Seen:
        nodes = [(n, *rest) for n, rest in sorted(self._nodes.items()) if rest[1]]
        if not nodes:
            return Seen()
        all_said = [said for _, _, _, said in nodes]
        known = sorted(filter(None, chain.from_iterable(p.usual for p in all_said)))
        middle = known[len(known) // 2] if known else 0
        limit = middle * SLOW
        phases = b"".join(p.phases for p in all_said)
        slow = nlargest(
            WORST,
            (
                (time, -rank, node, said.steps[i], said.phases[i])
                for node, _, ranks, said in nodes
                if limit and max(said.usual) > limit
                for i, (rank, time) in enumerate(zip(ranks, said.usual, strict=True))
                if time > limit
            ),
        )
        found = tuple(
            RankSeen(-rank, node, step, phase_name(phase), time / 1e6, True)
            for time, rank, node, step, phase in slow
        )
        return Seen(
            min(min(p.steps) for p in all_said),
            max(max(p.steps) for p in all_said),
            max(p.total for p in all_said),
            middle / 1e6,
            min(heard for _, heard, _, _ in nodes),
            {phase_name(p): n for p in range(256) if (n := phases.count(p))},
            found,
            self._listed(nodes, limit, found),
        )

    def _listed(
        self,
        nodes: list[tuple[int, float, tuple[int, ...], NodeProgress]],
        limit: float,
        slow: tuple[RankSeen, ...],
    ) -> tuple[RankSeen, ...]:
        """All ranks if they are few; otherwise the slow ones, and those without a process."""
        few = sum(len(ranks) for _, _, ranks, _ in nodes) <= LISTED
        seen = []
        for node, _, ranks, said in nodes:
            if not few and GONE not in said.phases:
                continue
            for rank, step, phase, time in zip(
                ranks, said.steps, said.phases, said.usual, strict=True
            ):
                if few or phase == GONE:
                    late = 0 < limit < time
                    seen.append(RankSeen(rank, node, step, phase_name(phase), time / 1e6, late))
        if few:
            return tuple(sorted(seen, key=lambda r: r.rank))
        return (*seen, *(s for s in slow if s.phase != PHASES[GONE]))[:WORST]

    def rate(self, step: int, now: float) -> float:
        """Note the step, and return the recent steps per minute; 0 if unknown. Called about once a
        second. A step back resets it."""
        if self._steps and step < self._steps[-1][1]:
            self._steps.clear()
        if step >= 0 and (not self._steps or now > self._steps[-1][0]):
            self._steps.append((now, step))
        while self._steps and now - self._steps[0][0] > WINDOW:
            self._steps.pop(0)
        if len(self._steps) < 2:
            return 0.0
        (then, before), (last, after) = self._steps[0], self._steps[-1]
        return (after - before) * 60.0 / (last - then)


def phase_name(phase: int) -> str:
    return PHASES[phase] if phase < len(PHASES) else str(phase)
