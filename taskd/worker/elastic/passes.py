"""Where ranks that are away are in their passes: their loaders are read beside the stand-in's."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from taskd import raised
from taskd.core.snapshots import PASS_END
from taskd.worker.elastic import loaders, private
from taskd.worker.elastic.away import Away, Pass
from taskd.worker.elastic.loaders import NotCloned
from taskd.worker.state import loading, places, resuming
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.resuming import END, Resuming
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")


class Carrier(resuming.Carrier, Protocol):
    state: TrainingState

    @property
    def rank(self) -> int: ...


class Passes:
    def __init__(self, carrier: Carrier, mine: dict[int, Away]) -> None:
        self._carrier, self._mine = carrier, mine
        self._loader: Any = None  # of our pass
        self._place = b""  # where it was when the pass began
        # our loaders with a state of their own, where they were at the end of their last pass
        self._ends: dict[int, tuple[Any, bytes]] = {}

    def begin(self, loader: Iterable[Any] | None, number: int, before: bytes, place: bytes) -> None:
        """This rank is in pass `number`, over `loader`; so are the others from now on. `before`,
        `place`: our generators' states, and places.place of the loader, when it began."""
        self._loader, self._place = loader, place
        self._go(number, before, list(self._mine.values()))

    def find(self, number: int, before: bytes, present: bytes) -> None:
        """The same for ranks that have just been taken up in the middle of our pass. `present`: our
        generators' states at the start of the step."""
        new = [away for away in self._mine.values() if away.behind]
        self._go(number, before, new, present)

    def _go(
        self, number: int, before: bytes, ranks: list[Away], present: bytes | None = None
    ) -> None:
        if not ranks:
            return
        random = self._carrier.random
        here = random.snapshot()
        try:
            for away in ranks:
                entry = away.entry
                if not away.behind or entry.pass_number < number:
                    self._begin(away, before, here if present is None else present)
                elif away.kind == PASS_END:
                    # as we are; the next pass comes
                    away.at = Pass(entry.pass_random, entry.loader)
                    if self._moved and not isinstance(self._loader, DataLoader):
                        self._settle(away, places.place(self._loader))
                elif entry.pass_number == number:
                    self._resume(away)
                # else it is ahead of us: in the pass that we begin next
        finally:
            random.restore(here)

    def _begin(self, away: Away, before: bytes, after: bytes) -> None:
        """Begin the pass as the rank would. `after`: our generators' states, once our own iterator
        had begun."""
        random, start, loader = self._carrier.random, away.random.now(before), self._loader
        if loader is None:
            away.at, away.behind = Pass(start, b""), False
            away.batches.clear()
            return
        kept = away.kept.get(id(loader))
        made = self._next(away)
        away.batches.clear()
        random.restore(start)
        place = places.place(made)
        away.at = Pass(start, place, made, iter(made))
        if self._goes_on:
            away.kept[id(loader)] = loader, made
            if loaders.persists(loader) and kept is None and before == after:
                random.restore(start)  # ours goes on with its workers: so did the rank's
                log.warning(
                    "rank %d is away: the workers of its %s begin anew: what they draw are other"
                    " random numbers than in a full job",
                    away.rank,
                    type(loader).__name__,
                )
        away.behind = False
        away.random.settle(after, random.snapshot())

    def _next(self, away: Away) -> Any:
        """The rank's loader for the pass that begins."""
        loader = self._loader
        _, kept = away.kept.get(id(loader), (None, None))
        if not self._moved:
            if kept is not None:
                return loaders.follow(kept, loader, *self._places(away))
            return self._clone(away)
        if not isinstance(loader, DataLoader):
            return self._moved_on(away)
        if kept is not None:
            return kept
        made = self._clone(away)
        if away.entry.pass_number < 0:
            raise self._unknown(away)
        self._resumed(away, made)
        return made

    @property
    def _goes_on(self) -> bool:
        """Whether a clone of our loader goes on to the next pass: for its workers, or since torch's
        loaders do not say where they are between two passes."""
        loader = self._loader
        return loaders.persists(loader) or (self._moved and isinstance(loader, DataLoader))

    # -- loaders with a state of their own ---------------------------------------------------------

    @property
    def _moved(self) -> bool:
        """Whether our loader's own state alone says where a rank is."""
        return self._loader is not None and not loaders.samplers(self._loader)

    def _moved_on(self, away: Away) -> Any:
        """The rank's loader for the pass that begins: ours, as the script has set it for the pass,
        with what is the rank's own in its state."""
        loader = self._loader
        if away.behind and id(loader) not in away.loaders and away.entry.pass_number >= 0:
            held, end = self._ends.get(id(loader), (None, b""))
            if held is loader:
                self._settle(away, end)
        held, apart = away.loaders.get(id(loader), (None, None))
        made = self._clone(away)
        if held is not loader or apart is None:
            raise self._unknown(away)
        places.put_place(made, apart.now(self._place), None)
        return made

    def _unknown(self, away: Away) -> NotCloned:
        return NotCloned(
            f"rank {away.rank} was lost before it had begun to read this"
            f" {type(self._loader).__name__}, so its state there is not known: {loaders.REMEDY}"
        )

    def _settle(self, away: Away, ours: bytes) -> None:
        """The rank, lost at the end of its pass, comes to there. `ours`: where our loader was
        then."""
        made = self._clone(away)
        try:
            self._resumed(away, made)
        except Exception as error:  # it gave other batches, or its code raised
            raised.heed(error)
            raise NotCloned(str(error)) from None
        self._differ(away, ours, made)

    def _differ(self, away: Away, ours: bytes, made: Any) -> None:
        """Both loaders are at the end of a pass. Raises NotCloned."""
        name = type(self._loader).__name__

        def changed(what: str) -> None:
            raise NotCloned(
                f"{what} in the state of {name} differs between ranks, and the script has changed"
                f" it between two passes: what rank {away.rank} would have there is not known"
            )

        apart = private.of_places(changed)
        apart.settle(ours, places.place(made))
        if not apart.differs:
            raise NotCloned(
                f"the state_dict() of {name} is the same on rank {away.rank} and on rank"
                f" {self._carrier.rank}, so it does not say whose batches they are: put the rank"
                f" into it, or {loaders.REMEDY}"
            )
        away.loaders[id(self._loader)] = self._loader, apart

    # -- in the middle of a pass -------------------------------------------------------------------

    def _resume(self, away: Away) -> None:
        """Continue in the middle of the pass, where the rank's record says."""
        entry = away.entry
        away.at, away.behind = Pass(entry.pass_random, entry.loader), False
        if self._loader is not None:
            made = self._clone(away)
            places = _ranks(made)
            away.at.loader, away.at.iterator = made, self._resumed(away, made)
            away.at.next = away.step + (away.step in away.batches)
            if self._goes_on:
                away.kept[id(self._loader)] = self._loader, made
            if _ranks(made) != places:
                raise RuntimeError(
                    f"the sampler of rank {away.rank} had rank {_ranks(made)}, not {places}, its"
                    f" place beside that of rank {self._carrier.rank}: {loaders.REMEDY}"
                )

    def _resumed(self, away: Away, made: Any) -> Iterator[Any]:
        entry, step = away.entry, away.step
        found = Resuming(away.rank, self._carrier, away.batches)
        iterator = found.iterator(made, step, away.kind, entry, entry.data("random"))
        away.batches.begin_at(step, entry.previous, entry.place)
        return iterator

    def _clone(self, away: Away) -> Any:
        return loaders.clone(self._loader, *self._places(away))

    def _places(self, away: Away) -> tuple[loaders.Place, loaders.Place]:
        return self.place(self._carrier.rank), self.place(away.rank)

    def place(self, rank: int) -> loaders.Place:
        """Where a rank of our replica set is."""
        replicas, world = self._carrier.state.replicas, self._carrier.communicators.world_size
        lanes = world if replicas.members is None else len(replicas.members)
        return loaders.Place(rank, world, replicas.place(rank), lanes)

    def neighbor(self) -> loaders.Place:
        """Where another rank of our replica set is; our own place where there is none."""
        members = self._carrier.state.replicas.members
        ours = self._carrier.rank
        ranks = range(self._carrier.communicators.world_size) if members is None else members
        return self.place(next((rank for rank in ranks if rank != ours), ours))

    def iterators(self) -> list[Iterator[Any]]:
        """Those of the other ranks' batches."""
        return [a.at.iterator for a in self._mine.values() if a.at.iterator is not None]

    # -- batches -----------------------------------------------------------------------------------

    def fetch(self, step: int, before: bytes, oldest: int, print: int | None) -> None:
        """Fetch the others' batches of `step`. `before`: our generators' states before we fetched
        ours, which has the fingerprint `print`; steps before `oldest` are not repeated. Raises
        WouldDiverge."""
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
            random.restore(start)
            state = loading.state_of(away.at.loader)
            batch = next(away.at.iterator or iter(()), END)
            if batch is END:
                raise self._uneven(away, "fewer")
            away.batches.keep(step, batch, start, random.snapshot(), oldest, state)
            if away.at.next is None and away.batches.fingerprint(step) == print:
                self._not_same(away)
            away.at.next = step + 1
        if due:
            random.restore(ours)

    def _not_same(self, away: Away) -> None:
        """The first batch of the pass is that of our own."""
        if not loaders.trusted(self._loader):
            raise NotCloned(
                f"{type(self._loader).__name__} gives rank {away.rank} the batch of rank"
                f" {self._carrier.rank}, so it does not know whose to read: {loaders.REMEDY}"
            )

    def ended(self, before: bytes) -> None:
        """Our loader is at its end; so must the others be. Raises WouldDiverge."""
        random = self._carrier.random
        ours = random.snapshot()
        # whether the loader says where it is between two passes
        says = loaders.moves(self._loader) and not isinstance(self._loader, DataLoader)
        for away in self._mine.values():
            if away.at.iterator is None:
                continue
            random.restore(away.random.now(before))
            if next(away.at.iterator, END) is not END:
                raise self._uneven(away, "more")
            away.random.settle(ours, random.snapshot())
            if says:
                self._differ(away, places.place(self._loader), away.at.loader)
        if says:
            self._ends[id(self._loader)] = self._loader, places.place(self._loader)
        random.restore(ours)

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
