"""How long attempts take, as counts by duration: libtaskd counts them in each rank, heartbeats have
the counts of a node's first rank, and the manager writes what is new in all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field


def seconds(kind: int) -> float:
    """The middle of the durations that are counted together, eight for each power of two from 2^16
    ns on (csrc/libtaskd.h); they differ from it by 6 % at most."""
    return (8.5 + kind % 8) / 8 * 2.0 ** (16 + kind // 8) / 1e9


@dataclass
class Durations:
    """`new`: counts that have not been taken yet."""

    new: Counter[int] = field(default_factory=Counter)
    _known: dict[int, dict[int, int]] = field(default_factory=dict)  # of each node

    def heard(self, node: int, counts: Iterable[tuple[int, int]]) -> None:
        """All counts of a node's rank. Those of another process start over; an earlier manager may
        have written the first."""
        now = dict(counts)
        before = self._known.get(node, now)
        if any(now.get(kind, 0) < count for kind, count in before.items()):
            before = {}
        self.new.update({kind: count - before.get(kind, 0) for kind, count in now.items()})
        self._known[node] = now

    def take(self) -> list[tuple[float, int]]:
        """(seconds, how many) of the new ones, the shortest first."""
        taken, self.new = self.new, Counter()
        return [(round(seconds(kind), 6), taken[kind]) for kind in sorted(taken) if taken[kind]]
