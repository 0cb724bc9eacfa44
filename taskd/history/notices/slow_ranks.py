"""Reports each slow rank once: a rank's speed varies, and one that is slow stays so for hours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

# checks, 10 s apart, in which a rank must be slow to count as slow, and fast to stop counting: a
# checkpoint or a neighbor on the node is over by then
BEGINS, ENDS = 3, 6


@dataclass
class _Seen:
    times: int = 0  # looks in a row
    missed: int = 0  # in a row
    named: bool = False


@dataclass
class SlowRanks:
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def advance(self, slow: Iterable[int]) -> tuple[int, ...]:
        """The ranks that are slow now; returns those to be named, once for each episode."""
        now = set(slow)
        named = []
        for rank in now:
            seen = self._seen.setdefault(rank, _Seen())
            seen.times, seen.missed = seen.times + 1, 0
            if seen.times >= BEGINS and not seen.named:
                seen.named = True
                named.append(rank)
        for rank in [rank for rank in self._seen if rank not in now]:
            seen = self._seen[rank]
            seen.times, seen.missed = 0, seen.missed + 1
            if not seen.named or seen.missed >= ENDS:
                del self._seen[rank]
        return tuple(sorted(named))
