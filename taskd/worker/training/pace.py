"""How often a rank records its whole state.

State without a replica (shards) is copied at every step if that is cheap, else at every k-th, with
k chosen so that copying takes at most 1 % of the time. After a death all ranks go back to the last
step that every rank has recorded. The two newest are kept, since ranks do not record at the same
moment.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

SHARE = 0.01  # of the time of a step
LARGE = 1 << 20  # bytes; less is recorded at every step
MOST = 50  # steps between two records
SAMPLES = 16


class Pace:
    """The steps at which one rank records its whole state. `every`: how many steps apart."""

    def __init__(self, every: int | None = None) -> None:
        """`every`: None if it is chosen by measurement."""
        self.chosen = every is None
        self.every = every or 1
        self._recorded: list[int] = []  # at most two steps
        self._next = 0
        self._costs: deque[float] = deque(maxlen=SAMPLES)
        self._spans: deque[float] = deque(maxlen=SAMPLES)

    def due(self, step: int) -> bool:
        """Whether the state at the start of `step` is recorded whole."""
        return step >= self._next or (bool(self._recorded) and step == self._recorded[-1])

    def recorded(self, step: int) -> None:
        if not self._recorded or step != self._recorded[-1]:
            self._recorded = [*self._recorded[-1:], step]
        self._next = step + self.every

    def oldest(self, step: int) -> int:
        """The first step that may still be repeated when `step` begins."""
        if step == self._next and self._recorded and self._recorded[-1] < step:  # the usual case
            return self._recorded[-1]
        earlier = [s for s in self._recorded if s < step]
        if not earlier:
            return step
        return earlier[-1] if self.due(step) else earlier[0]

    def go_back(self, step: int, every: int) -> None:
        """All ranks repeat `step`; `every`: as it was when that began."""
        self._recorded = [s for s in self._recorded if s <= step]
        self._next, self.every = step, every

    def begin_pass(self, step: int) -> None:
        """Forget steps before `step`, which are over on all ranks."""
        self._next = min(self._next, step)

    # -- how many steps apart ----------------------------------------------------------------------

    def measured(self, cost: float, span: float) -> None:
        """Recording has taken `cost` seconds; `span`: since the step before began."""
        self._costs.append(cost)
        self._spans.append(max(span - cost, 0.0))

    def wanted(self, size: int) -> int:
        """How many steps apart this rank's `size` bytes should be recorded."""
        if not self.chosen:
            return self.every
        if size < LARGE or not self._spans or not median(self._spans):
            return 1
        need = median(self._costs) / (SHARE * median(self._spans))
        return min(max(math.ceil(need), 1), MOST)

    def agree(self, wanted: int) -> None:
        """Adopt the interval of the rank whose recording costs most, from the next record on."""
        self.every = wanted
