"""What a rank keeps of itself on its node, and what that says about where it was: which slot is
written when, which steps can be gone back to. No bytes here; `taskd.records.store` has them.

*Records* are the private state of a rank (random numbers, loader position, buffers, small objects)
at the start of a step, in three slots; *stripes* its part of the node's copy of the training state,
in two. Both outlive the rank. A slot counts only when it is complete.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.messages.values import Position

SLOTS, STRIPES = 3, 2
# Kinds of records, in the order in which a step's are written. PROVISIONAL: at the commit of the
# step before, which user code between two steps may still change. PASS_END: the loop of a pass is
# over. PAUSED: final, of a rank that was held before the step and had not fetched its batch.
# FINAL: at the start of the step.
PROVISIONAL, PASS_END, PAUSED, FINAL = 1, 2, 3, 4
KINDS = (PROVISIONAL, PASS_END, PAUSED, FINAL)

Record = tuple[int, int]  # step, kind


@dataclass
class Snapshots:
    """`records` and `stripes` are the slots; None is one that is free, or half written."""

    records: list[Record | None] = field(default_factory=lambda: [None] * SLOTS)
    stripes: list[int | None] = field(default_factory=lambda: [None] * STRIPES)

    def slot(self) -> int:
        """The slot for the next record: a free one, or that of the oldest. There is one record of a
        step at most, so the present step and the one before keep theirs while another is written:
        a rank may be killed in the middle."""
        if None in self.records:
            return self.records.index(None)
        return self.records.index(min(r for r in self.records if r is not None))

    def begin(self) -> int:
        """A record is being written: what was in its slot is gone. Returns the slot."""
        index = self.slot()
        self.records[index] = None
        return index

    def write(self, step: int, kind: int, index: int | None = None) -> list[int]:
        """The record in slot `index`, or the one it would have, is complete. Returns the slots of
        records of the same step, which it replaces: what was provisional does not count any more
        once it is known what user code has made of it."""
        index = self.slot() if index is None else index
        self.records[index] = (step, kind)
        old = [
            i
            for i, r in enumerate(self.records)
            if i != index and r is not None and r[0] == step and r[1] <= kind
        ]
        for replaced in old:
            self.records[replaced] = None
        return old

    def has(self, step: int, kind: int) -> bool:
        return (step, kind) in self.records

    def promote(self, step: int) -> int:
        """The provisional record of `step` is what a final one would be. Returns its slot."""
        index = self.records.index((step, PROVISIONAL))
        self.records[index] = (step, FINAL)
        return index

    def enter(self, step: int, same: bool) -> None:
        """`step` begins. `same`: nothing has changed since its provisional record."""
        if same and self.has(step, PROVISIONAL):
            self.promote(step)
        else:
            self.write(step, FINAL)

    def stripe(self, step: int) -> int:
        """The stripe of `step` is being written: the one before the last is gone. Returns its
        slot."""
        self.stripes[step % STRIPES] = None
        return step % STRIPES

    def striped(self, step: int) -> None:
        """The stripe of `step` is complete."""
        self.stripes[step % STRIPES] = step

    def go_back(self, step: int) -> list[int]:
        """All ranks go back to `step`: later records are void. Returns their slots."""
        late = [i for i, r in enumerate(self.records) if r is not None and r[0] > step]
        for index in late:
            self.records[index] = None
        self.stripes = [s if s is not None and s <= step else None for s in self.stripes]
        return late

    @property
    def final(self) -> frozenset[int]:
        return frozenset(r[0] for r in self.records if r is not None and r[1] != PROVISIONAL)

    @property
    def provisional(self) -> frozenset[int]:
        return frozenset(r[0] for r in self.records if r is not None and r[1] == PROVISIONAL)

    @property
    def striped_steps(self) -> frozenset[int]:
        return frozenset(s for s in self.stripes if s is not None)

    def position(
        self,
        step: int,
        clean: int | None,
        drifted: frozenset[int] = frozenset(),
        doubted: bool = False,
    ) -> Position:
        """Of a living rank that stands at `step`; see Position."""
        return Position(
            step, clean, self.final, self.provisional, self.striped_steps, drifted, doubted
        )

    def left(self) -> Position | None:
        """Of a dead one; None where it has left nothing."""
        known = self.final | self.provisional
        return self.position(max(known), None) if known else None


def drifting(drifted: set[int], step: int) -> set[int]:
    """`drifted` with `step`, at whose start something is not as it was at the commit before; older
    steps are not gone back to."""
    return {s for s in drifted if s >= step - 1} | {step}
