"""When the others waited for slow ranks, by the entries `slow` of a job's journal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from taskd.history.reading import Record


@dataclass(frozen=True)
class Slowed:
    """The others wait for slow ranks, so that `share` of each step is lost. `ranks`: share of a
    step, by rank. `until`: Unix time, None while it is so."""

    since: float
    ranks: dict[int, float]
    until: float | None = None

    @property
    def share(self) -> float:
        return max(self.ranks.values())


@dataclass
class SlowTimes:
    """`now`: None while no rank is slow; `over`: when ranks were, the newest `most`."""

    most: int
    now: Slowed | None = None
    over: list[Slowed] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Of a step that is lost now."""
        return self.now.share if self.now is not None else 0.0

    def told(self, record: Record, earliest: float) -> float:
        """A rank makes the others wait, for another share of each step, or no longer. It is named
        once it has been slow for a while: returns for how many seconds the job's first one has
        been, since `earliest` at most."""
        rank, late, taken = record.step("rank"), record.seconds("late"), record.seconds("step")
        state, time = record.text("state"), record.time
        if rank < 0:
            return 0.0
        ranks = dict(self.now.ranks) if self.now is not None else {}
        ranks.pop(rank, None)
        if state != "over" and 0 < late <= taken:
            ranks[rank] = late / taken
        since = time
        if state == "begun" and self.now is None and ranks:
            since = min(max(record.number("began", time), earliest), time)
        self.set(ranks, since)
        return time - since

    def set(self, ranks: dict[int, float], time: float) -> None:
        """These are slow from now on, with their shares of a step."""
        if self.now is not None:
            self.over.append(replace(self.now, until=max(time, self.now.since)))
            del self.over[: -self.most]
        self.now = Slowed(time, ranks) if ranks else None
