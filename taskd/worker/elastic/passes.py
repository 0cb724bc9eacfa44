"""Where ranks that are away are in their passes: their loaders are read beside the stand-in's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from taskd.core.snapshots import PASS_END
from taskd.worker.elastic import loaders
from taskd.worker.elastic.away import Away, Pass
from taskd.worker.state import loading
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.resuming import END, Resuming
from taskd.worker.state.training_state import TrainingState


class Communicators(Protocol):
    world_size: int


class Carrier(Protocol):
    state: TrainingState
    random: RandomState

    @property
    def rank(self) -> int: ...

    @property
    def communicators(self) -> Communicators: ...


class Passes:
    """`apart`: way -> a context in which a loader is read without the other ranks."""

    def __init__(self, carrier: Carrier, mine: dict[int, Away]) -> None:
        self._carrier, self._mine = carrier, mine
        self.apart: Callable[[str], AbstractContextManager[None]] = lambda way: nullcontext()

    def begin(self, loader: Iterable[Any] | None, number: int, before: bytes) -> None:
        """This rank is in pass `number`, over `loader`; so are the others from now on. `before`:
        our generators' states when it began."""
        self._go(loader, number, before, list(self._mine.values()))

    def find(
        self, loader: Iterable[Any] | None, number: int, before: bytes, present: bytes
    ) -> None:
        """The same for ranks that have just been taken up in the middle of our pass. `present`: our
        generators' states at the start of the step."""
        new = [away for away in self._mine.values() if away.found]
        self._go(loader, number, before, new, present)

    def _go(
        self,
        loader: Iterable[Any] | None,
        number: int,
        before: bytes,
        ranks: list[Away],
        present: bytes | None = None,
    ) -> None:
        if not ranks:
            return
        random = self._carrier.random
        here = random.snapshot()
        try:
            for away in ranks:
                entry = away.entry
                if not away.found or entry.pass_number < number:
                    self._begin(away, loader, before, here if present is None else present)
                elif away.kind == PASS_END:
                    # as we are; the next pass comes
                    away.at = Pass(entry.pass_random, entry.loader)
                elif entry.pass_number == number:
                    self._resume(away, loader)
                # else it is ahead of us: in the pass that we begin next
        finally:
            random.put(here)

    def _begin(self, away: Away, loader: Iterable[Any] | None, before: bytes, after: bytes) -> None:
        """Begin the pass as the rank would. `after`: our generators' states, once our own iterator
        had begun."""
        random, start = self._carrier.random, away.random.now(before)
        if loader is None:
            away.at, away.found = Pass(start, b""), False
            away.batches.clear()
            return
        made = self._continued(away, loader)
        away.batches.clear()
        random.put(start)
        place = loading.place(made)
        away.at = Pass(start, place, made, iter(made))
        away.found = False
        away.random.settle(after, random.snapshot())

    def _continued(self, away: Away, loader: Iterable[Any]) -> Any:
        """The rank's loader for its next pass."""
        if loaders.samplers(loader):
            return self._clone(away, loader)
        if not away.found and away.at.loader is not None:
            return away.at.loader  # it knows what it has read
        made = self._clone(away, loader)
        if away.entry.pass_number >= 0:
            self._resumed(away, made)
        return made

    def _resume(self, away: Away, loader: Iterable[Any] | None) -> None:
        """Continue in the middle of the pass, where the rank's record says."""
        entry = away.entry
        away.at, away.found = Pass(entry.pass_random, entry.loader), False
        if loader is not None:
            made = self._clone(away, loader)
            places = _ranks(made)
            away.at.loader, away.at.iterator = made, self._resumed(away, made)
            away.at.next = away.step + (away.step in away.batches)
            if _ranks(made) != places:
                raise RuntimeError(
                    f"the sampler of rank {away.rank} had rank {_ranks(made)}, not {places}, its"
                    f" place beside that of rank {self._carrier.rank}: {loaders.REMEDY}"
                )

    def _resumed(self, away: Away, made: Any) -> Iterator[Any]:
        entry, step = away.entry, away.step
        resuming = Resuming(away.rank, self._carrier.random, away.batches, self.apart)
        iterator = resuming.iterator(made, step, away.kind, entry, entry.random)
        away.batches.begin_at(step, entry.previous, entry.place)
        return iterator

    def _clone(self, away: Away, loader: Iterable[Any]) -> Any:
        return loaders.clone(loader, self.place(self._carrier.rank), self.place(away.rank))

    def place(self, rank: int) -> loaders.Place:
        """Where a rank of our replica set is."""
        replicas, world = self._carrier.state.replicas, self._carrier.communicators.world_size
        lanes = world if replicas.members is None else len(replicas.members)
        return loaders.Place(rank, world, replicas.place(rank), lanes)

    def iterators(self) -> list[Iterator[Any]]:
        """Those of the other ranks' batches."""
        return [a.at.iterator for a in self._mine.values() if a.at.iterator is not None]

    # -- batches -----------------------------------------------------------------------------------

    def fetch(self, step: int, before: bytes, oldest: int) -> None:
        """Fetch the others' batches of `step`. `before`: our generators' states before we fetched
        ours; steps before `oldest` are not repeated. Raises WouldDiverge."""
        random = self._carrier.random
        due = [a for a in self._mine.values() if a.at.iterator is not None]
        due = [away for away in due if step not in away.batches]
        ours = random.snapshot()
        for away in due:
            if away.at.next not in (None, step):
                raise RuntimeError(
                    f"step {step} must be repeated, but the loader of rank {away.rank}, which is"
                    f" away, is at step {away.at.next} here: this process is replaced"
                )
            start = away.random.now(before)
            random.put(start)
            state = loading.state(away.at.loader)
            batch = next(away.at.iterator or iter(()), END)
            if batch is END:
                raise self._uneven(away, "fewer")
            away.batches.keep(step, batch, start, random.snapshot(), oldest, state)
            away.at.next = step + 1
        if due:
            random.put(ours)

    def ended(self, before: bytes) -> None:
        """Our loader is at its end; so must the others be. Raises WouldDiverge."""
        random = self._carrier.random
        ours = random.snapshot()
        for away in self._mine.values():
            if away.at.iterator is None:
                continue
            random.put(away.random.now(before))
            if next(away.at.iterator, END) is not END:
                raise self._uneven(away, "more")
            away.random.settle(ours, random.snapshot())
        random.put(ours)

    def _uneven(self, away: Away, more: str) -> WouldDiverge:
        return WouldDiverge(
            f"elastic-training: the loader of rank {away.rank}, which is away, has {more} batches"
            f" than that of rank {self._carrier.rank}, which stands in for it: give all ranks"
            " loaders of the same length (DistributedSampler does)"
        )


def _ranks(loader: Any) -> list[int]:
    """Those of its samplers."""
    found = []
    for holder, name in loaders.samplers(loader):
        inside = getattr(loader, holder) if holder else loader
        found.append(getattr(inside, name).rank)
    return found
