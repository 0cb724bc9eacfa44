"""How long the attempts of a job have taken: all of them by duration, and over time.

The journal counts attempts of about the same duration together, so every figure is off by 6 % at
most. An entry `progress` has those since the entry before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from taskd.history.facts import Sample

POINTS = 600  # over time, at most


@dataclass(frozen=True)
class StepTimes:
    """`counts`: (seconds, how many), the shortest first; `over`: (from, to, median, 99 %) of the
    attempts between two Unix times. Seconds."""

    counts: tuple[tuple[float, int], ...]
    median: float
    p99: float
    over: tuple[tuple[float, float, float, float], ...]

    @property
    def attempts(self) -> int:
        return sum(count for _, count in self.counts)


def of_samples(samples: Sequence[Sample]) -> StepTimes | None:
    """None if the journal does not have them."""
    counts: Counter[float] = Counter()
    for sample in samples:
        counts.update(dict(sample.times))
    if not sum(counts.values()):
        return None
    whole = tuple(sorted((s, n) for s, n in counts.items() if n))
    return StepTimes(whole, share(counts, 0.5), share(counts, 0.99), tuple(_over(samples)))


def share(counts: Mapping[float, int], part: float) -> float:
    """The duration that so large a part of the attempts did not exceed."""
    left = part * sum(counts.values())
    for seconds in sorted(counts):
        left -= counts[seconds]
        if left <= 0:
            return seconds
    return max(counts)


def _over(samples: Sequence[Sample]) -> Iterable[tuple[float, float, float, float]]:
    every = max(-(-len(samples) // POINTS), 1)
    for at in range(1, len(samples), every):
        some: Counter[float] = Counter()
        for sample in samples[at : at + every]:
            some.update(dict(sample.times))
        if sum(some.values()):
            last = samples[min(at + every, len(samples)) - 1]
            yield samples[at - 1].at, last.at, share(some, 0.5), share(some, 0.99)
