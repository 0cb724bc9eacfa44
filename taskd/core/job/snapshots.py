"""The slots in which a rank keeps its state on its node: which is written when, and to which steps
the rank can go back. `taskd.records.store` has the bytes.

*Records* are the private state of a rank (random numbers, loader position, buffers, small objects)
at the start of a step, in three slots, or two if they are large; *stripes* are its part of the
node's copy of the replicated state, in two. Both outlive the rank. A slot counts only if it is
complete. They are written at every step, or at every k-th (worker/training/pace.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.messages.values import Position

SLOTS, STRIPES, STARTS = 3, 2, 2
# Records of more than LARGE bytes, which have parts of the model in them, take FEW slots. That is
# enough where each step has a collective of all ranks: who has committed a step knows that all have
# begun it. The third slot lets ranks without one be a step further apart.
FEW, LARGE = 2, 1 << 20
# Kinds of records, in the order in which they are written for a step. PROVISIONAL: at the previous
# commit; user code between the two steps may still change the state. PASS_END: after the loop of a
# pass. PAUSED: final, of a rank paused before the step that had not fetched its batch. FINAL: at
# the start of the step. PROMOTED: final, a provisional one that user code had not changed; read as
# FINAL, but it also speaks for the provisional ones of other ranks.
PROVISIONAL, PASS_END, PAUSED, FINAL, PROMOTED = KINDS = 1, 2, 3, 4, 5
# Beside those of steps, which it outlives: what the rank's set-up saw (records/start.py).
START = 6

Record = tuple[int, int]  # step, kind


@dataclass
class Snapshots:
    """The slots of one rank, `records` and `stripes`; None is a free or half-written slot."""

    records: list[Record | None] = field(default_factory=lambda: [None] * SLOTS)
    stripes: list[int | None] = field(default_factory=lambda: [None] * STRIPES)
    resumed: int | None = None  # the step to which all ranks went back last

    def begin(self, step: int, most: int = SLOTS) -> int:
        """Start writing a record of `step`, which clears its slot; return the slot: a free one if
        fewer than `most` are in use, or that of the oldest record. Of few, that of the same step's
        record is taken, where no rank goes back to it without the step before: that one has to
        stay. So it has at the end of a pass, behind which the script may change what is taken from
        others. What the ranks may go back to is kept even if the rank is killed while it writes."""
        records = self.records
        used = len(records) - records.count(None)
        if used < most:
            return records.index(None)
        oldest: Record | None = None
        if most == FEW and step != self.resumed:
            known = (step, PROVISIONAL), (step, PAUSED)
            oldest = next((record for record in known if record in records), None)
        if most == FEW and (step, PASS_END) in records:
            oldest = step, PASS_END
        if oldest is None:
            there = records if used == len(records) else [r for r in records if r is not None]
            oldest = min(there)  # type: ignore[type-var]
        index = records.index(oldest)
        records[index] = None
        return index

    def write(self, step: int, kind: int, index: int | None = None, most: int = SLOTS) -> list[int]:
        """Complete the record in slot `index`, or in the one `begin` chooses. Returns the slots
        that it makes free: of records of the same step that it replaces (a provisional one no
        longer counts once the effect of user code is known), and of those beyond `most`."""
        index = self.begin(step, most) if index is None else index
        records = self.records
        records[index] = (step, kind)
        old, there = [], []
        for i, r in enumerate(records):
            if r is None or i == index:
                continue
            if r[0] == step and (r[1] <= kind or kind >= FINAL):
                records[i] = None
                old.append(i)
            else:
                there.append((r, i))
        if len(there) >= most:
            for _, i in sorted(there)[: len(there) + 1 - most]:
                records[i] = None
                old.append(i)
        return old

    def has(self, step: int, kind: int) -> bool:
        return (step, kind) in self.records

    def promote(self, step: int) -> int:
        """Make the provisional record of `step` final, as nothing changed; return its slot."""
        index = self.records.index((step, PROVISIONAL))
        self.records[index] = (step, PROMOTED)
        return index

    def enter(self, step: int, same: bool) -> None:
        """Record the start of `step`. `same`: nothing has changed since its provisional record."""
        if same and self.has(step, PROVISIONAL):
            self.promote(step)
        else:
            self.write(step, FINAL)

    def stripe(self, step: int) -> int:
        """Start writing the stripe of `step`, which clears its slot; return the slot: that of the
        same step, a free one, or that of the older one."""
        first, second = self.stripes
        if step in (first, second):
            index = self.stripes.index(step)
        else:
            index = 0 if first is None or (second is not None and first < second) else 1
        self.stripes[index] = None
        return index

    def striped(self, step: int, index: int | None = None) -> None:
        """Complete the stripe of `step` in slot `index`, or in the one `stripe` chooses."""
        self.stripes[self.stripe(step) if index is None else index] = step

    def go_back(self, step: int) -> list[int]:
        """Void all records after `step`, to which all ranks go back; return their slots."""
        self.resumed = step
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
    def promoted(self) -> frozenset[int]:
        return frozenset(r[0] for r in self.records if r is not None and r[1] == PROMOTED)

    @property
    def striped_steps(self) -> frozenset[int]:
        return frozenset(s for s in self.stripes if s is not None)

    def position(
        self,
        step: int,
        clean: int | None,
        drifted: frozenset[int] = frozenset(),
        doubted: bool = False,
        replica_set: int = 0,
    ) -> Position:
        """Return the position of a living rank at `step`; see Position."""
        return Position(
            step,
            clean,
            self.final,
            self.provisional,
            self.striped_steps,
            drifted,
            doubted,
            replica_set=replica_set,
        )

    def left(self, replica_set: int = 0) -> Position | None:
        """Return the position of a dead rank; None if it left no record."""
        if not (known := self.final | self.provisional):
            return None
        ends = frozenset(r[0] for r in self.records if r is not None and r[1] == PASS_END)
        left = self.position(max(known), None, replica_set=replica_set)
        return left.but(final=self.final - ends, promoted=self.promoted, ends=ends)


def drifting(drifted: set[int], step: int) -> set[int]:
    """Add `step`, at whose start the state differs from the previous commit, to `drifted`; drop
    steps too old to go back to."""
    return (drifted & {step - 1, step}) | {step}
