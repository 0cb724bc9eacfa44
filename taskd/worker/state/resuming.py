"""Begins a rank's loader in the middle of a pass, where its record says that it was."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from taskd import raised
from taskd.core.job.snapshots import FINAL, PASS_END
from taskd.worker.state import loading, places, plain
from taskd.worker.state.batches import Batches
from taskd.worker.state.content import fingerprint
from taskd.worker.state.entry import Entry
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

END = object()  # what comes after a loader's last batch
# seconds that a process may take to reload what another one had loaded in a pass
LOADING = 3600.0


class Communicators(Protocol):
    world_size: int

    def aside(self) -> AbstractContextManager[None]: ...


class Patience(Protocol):
    def extended(self, seconds: float) -> AbstractContextManager[None]: ...


class Variables(Protocol):
    def objects(self) -> set[int]: ...


class Carrier(Protocol):
    """The process that reads a loader: a ProtectedRank."""

    random: RandomState
    state: TrainingState

    @property
    def rank(self) -> int: ...

    @property
    def variables(self) -> Variables: ...

    @property
    def communicators(self) -> Communicators: ...

    @property
    def patience(self) -> Patience: ...


@dataclass(frozen=True)
class Resuming:
    """How the loader of `carrier` is begun. `batches`: keeps the step's own."""

    carrier: Carrier
    batches: Batches

    def iterator(
        self, loader: Iterable[Any], step: int, kind: int, entry: Entry, present: bytes
    ) -> Iterator[Any]:
        """`loader`'s iterator at the place in `entry`, the record of `kind` for `step`, with
        the batch of a step that had begun. `present`: generators' states after that. Raises
        RuntimeError if it gives other batches."""
        failed: Exception | None = None
        # the fast ways first; if one fails or gives a different batch, the next one
        ways = loading.ways(_place(entry)[0])
        if self._changes(loader):
            ways = [loading.WHOLE]
        tries = [(way, True, True) for way in ways]
        if places.moves(entry.loader):  # which may be a place in the pass before
            tries.append((loading.WHOLE, True, False))
        for way, attributes, own in tries:
            try:
                iterator, exact = self._try(
                    loader, step, kind, entry, present, way, attributes, own
                )
                if exact:
                    return iterator
                failed, what = None, "gave a different batch than before"
            except Exception as error:  # the script's code
                raised.heed(error)
                if attributes:  # of which one may describe what is not here
                    tries.append((way, False, own))
                failed, what = error, f"raised {type(error).__name__}: {error}"
            rank = self.carrier.rank
            log.warning("rank %d: %s (%s) %s", rank, type(loader).__name__, way, what)
        if failed is not None and not isinstance(failed, StopIteration):
            raise failed
        other = "a different batch" if failed is None else "no batch or a different one"
        raise RuntimeError(
            f"{type(loader).__name__} gave {other} for step {step} than the previous process of"
            f" rank {self.carrier.rank} got: it keeps state outside its samplers and generators, or"
            " depends on what other ranks send; the rank cannot be restored exactly"
        )

    def _changes(self, loader: Iterable[Any]) -> bool:
        """Whether its data set notes what has been read: what is skipped would not be noted."""
        return self.carrier.state.attributes.drawn_of(places.attributes_around(loader))

    def _try(
        self,
        loader: Iterable[Any],
        step: int,
        kind: int,
        entry: Entry,
        present: bytes,
        way: str,
        attributes: bool,
        own: bool,
    ) -> tuple[Iterator[Any], bool]:
        """Return an iterator at the recorded place, and whether it gives the batches that the
        previous process got. `way`: see loading.begin. `attributes`: also of the script's own
        samplers and data sets; `own`: the loader's state_dict() as the pass began."""
        random = self.carrier.random
        random.restore(entry.pass_random)
        objects = self.carrier.variables.objects()
        without = objects if attributes else None
        places.put_place(loader, entry.loader, without, own)
        if way != loading.MOVED:
            places.release(loader)
        if places.start_workers(loader, entry.loader):
            random.restore(entry.pass_random)
        self.carrier.state.attributes.draw_again()
        before = entry.start
        # a batch may depend on what was loaded before it; without workers the step's own tells,
        # where there is one. Where the loop changes what the loader reads, the one before cannot
        look_back = (
            entry.previous is not None
            and entry.index > 0
            and (
                way == loading.MOVED
                or loading.has_workers(loader)
                or ((kind != FINAL or entry.batch is None) and not places.shares(loader, objects))
            )
        )
        state, then = _place(entry)
        with self._apart(way):
            iterator = loading.begin(loader, entry.index - look_back, way, state)
            if way == loading.MOVED:
                iterator = places.releasing(loader, iterator)
            if then:
                random.restore(then)
            if look_back and fingerprint(next(iterator, None)) != entry.previous:
                return iterator, False
            random.restore(before)
            if kind == FINAL:
                self.batches.keep(step, next(iterator), before, present, step)
                if entry.batch not in (None, self.batches.fingerprint(step)):
                    return iterator, False
            # the previous process reached the end of its loader, which may count its passes there
            if kind == PASS_END:
                if next(iterator, END) is not END:
                    return iterator, False
                places.put_end(loader, entry.loader, without)
        return iterator, True

    @contextmanager
    def _apart(self, way: str) -> Iterator[None]:
        """A context in which a loader is read without the other ranks: loaders that agree on random
        numbers at the start of a pass (Accelerate's) would contact peers that did so long ago."""
        patience = LOADING if way == loading.WHOLE else 0.0
        with self.carrier.communicators.aside(), self.carrier.patience.extended(patience):
            yield


def _place(entry: Entry) -> tuple[bytes, bytes]:
    """The loader's own state before the batch that came last, and that of the generators; b"" for
    what its fetch did not need."""
    state, then = plain.decode(entry.place) if entry.place else (b"", b"")
    return state, then
