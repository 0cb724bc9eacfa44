"""`job.iterate(source)`: batches that an attempt draws itself, and gets again if it is repeated.

Drawn batches are kept by *section*: inside an attempt at a step, or between two attempts. A section
that runs again gets the same batches, with the generators' states after each. A replacement begins
its source where the previous process was, and compares the batch before that place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from taskd.worker.state import loading, plain
from taskd.worker.state.kept import Keeper, Kept
from taskd.worker.state.random_state import RandomState

Section = tuple[int, bool]  # step, inside the attempt (else before it)


@dataclass(frozen=True)
class Place:
    """How many batches were drawn, the fingerprint of the last one, and the generators' states and
    the source's own (see loading.state) before it was fetched."""

    count: int = 0
    print: int = 0
    before: bytes = b""
    state: bytes = b""


@dataclass
class _Item:
    """What one fetch gave, with the place after it and the generators' states; `last`: the source
    had ended."""

    value: Kept
    place: Place
    after: bytes
    last: bool = False


@dataclass
class _Kept:
    """What a section has drawn, from where."""

    begin: Place
    items: list[_Item] = field(default_factory=list)

    @property
    def end(self) -> Place:
        return self.items[-1].place if self.items else self.begin


class Drawn(Iterator[Any]):
    """The iterator that `job.iterate` returns. `iterator`: what this process draws from, None
    before its first batch. `origin`, `counters`: the generators' states and the loader's counters
    (see loading.place) before it. `keeps`: batches may be asked for again."""

    def __init__(self, source: Iterable[Any], random: RandomState) -> None:
        self._source, self._random = source, random
        self.iterator: Iterator[Any] | None = None
        self.origin = self.counters = b""
        self._kept: dict[Section, _Kept] = {}
        self._section: Section = (0, False)
        self.place, self.keeps = Place(), True
        self._keeper = Keeper()
        random.watch(loading.generators(source))

    def __next__(self) -> Any:
        kept = self._kept.setdefault(self._section, _Kept(self.place))
        if not self.keeps and self.place == kept.end:
            return next(self._open())
        at = self.place.count - kept.begin.count
        if at < len(kept.items):
            item = kept.items[at]
            self._random.put(item.after)
        else:
            kept.items.append(item := self._fetch())
        if item.last:
            raise StopIteration
        self.place = item.place
        return item.value.value

    def _fetch(self) -> _Item:
        before = self._random.snapshot()
        # if the source has not begun, its beginning is known
        state = loading.state(self._source) if self.iterator is not None else b""
        try:
            value = next(self._open())
        except StopIteration:
            return _Item(self._keeper.keep(None), self.place, self._random.snapshot(), last=True)
        except BaseException:
            if self.place.count == 0:
                self.iterator = None  # what it drew from the generators as it began is drawn again
            raise
        kept = self._keeper.keep(value)
        place = Place(self.place.count + 1, kept.print, before, state)
        return _Item(kept, place, self._random.snapshot())

    def _open(self) -> Iterator[Any]:
        if self.iterator is None:
            self.origin, self.counters = self._random.snapshot(), loading.place(self._source)
            self.iterator = iter(self._source)
        return self.iterator

    def attempt_begins(self, step: int, oldest: int) -> None:
        """An attempt at `step` begins, perhaps another one. Raises RuntimeError if an earlier one
        has changed its batches and they were not copied."""
        for old in [s for s in self._kept if s[0] < oldest]:
            del self._kept[old]
        inside, ahead = self._kept.get((step, True)), self._kept.get((step, False))
        if inside is not None:
            self.place = inside.begin
            for item in inside.items:
                item.value.again(f"a batch of step {step}")
        elif ahead is not None:
            self.place = ahead.end
        self._section = (step, True)

    def committed(self, step: int) -> None:
        """What is drawn now is drawn before the attempt at `step`."""
        self._section = (step, False)

    def begin_at(self, step: int, place: Place, origin: bytes, counters: bytes) -> None:
        """Begin before `step` where the previous process was. Raises RuntimeError if the source
        gives other batches than there."""
        self.place, self._section = place, (step, False)
        if place.count == 0:
            return
        self.origin, self.counters = origin, counters
        present = self._random.snapshot()
        try:
            if not any(map(self._goes_on, loading.ways(place.state))):
                raise RuntimeError(
                    f"{type(self._source).__name__}, given to job.iterate(), gave another batch"
                    f" number {place.count - 1} than this rank's previous process got, so the"
                    " rank cannot be restored: it keeps state outside its samplers and generators,"
                    " or begins an epoch with torch's global random numbers; give a shuffling"
                    " DataLoader generator=torch.Generator()"
                )
        finally:
            self._random.put(present)

    def _goes_on(self, way: str) -> bool:
        """Begin at the place; return whether the batch before it is the same."""
        source = self._source
        if way == loading.WHOLE and self.iterator is source:
            return False  # it cannot begin anew
        self._random.put(self.origin)
        loading.put_place(source, self.counters)
        self.iterator = loading.begin(source, self.place.count - 1, way, self.place.state)
        if not loading.has_workers(source):
            self._random.put(self.place.before)
        return loading.fingerprint(next(self.iterator, None)) == self.place.print


class Draws:
    """The iterators of one rank, in the order in which its script has made them."""

    def __init__(
        self, random: RandomState, apart: Callable[[], AbstractContextManager[None]]
    ) -> None:
        """`apart`: a context in which a loader is read without the other ranks."""
        self._random, self._apart = random, apart
        self._all: list[Drawn] = []
        # of iterators that a replacement has not made yet
        self._missing: list[tuple[Place, bytes, bytes]] = []
        self._step = 0  # this process begins before it
        self._closed = False

    def add(self, source: Iterable[Any]) -> Drawn:
        """Raises RuntimeError after the first attempt: a replacement would not get that far."""
        if self._closed:
            raise RuntimeError(
                "job.iterate() was called after the first attempt: call it before the loop, with an"
                " iterator that goes on over all epochs"
            )
        drawn = Drawn(source, self._random)
        self._all.append(drawn)
        if self._missing:
            with self._apart():
                drawn.begin_at(self._step, *self._missing.pop(0))
        return drawn

    def __bool__(self) -> bool:
        """Whether the script draws from any."""
        return bool(self._all)

    def let_go(self) -> None:
        """Release all batches: no step will be repeated."""
        for drawn in self._all:
            drawn.keeps = False

    def iterators(self) -> list[Iterator[Any]]:
        return [d.iterator for d in self._all if d.iterator is not None]

    def places(self) -> bytes:
        """Where all are, for a record."""
        if not self._all:
            return b""
        places = [d.place for d in self._all]
        return plain.encode([(p.count, p.print, p.before, p.state) for p in places])

    def origins(self) -> bytes:
        """How all began, for a record; seldom changes."""
        return plain.encode([(d.origin, d.counters) for d in self._all]) if self._all else b""

    def begin_at(self, step: int, places: bytes, origins: bytes) -> None:
        """Begin before `step`, where the previous process was; iterators that are made later, too.
        Raises RuntimeError if that is not possible."""
        if not places:
            return
        both = zip(plain.decode(places), plain.decode(origins), strict=True)
        found = [(Place(*where), *how) for where, how in both]
        self._step, self._missing = step, found[len(self._all) :]
        with self._apart():
            for drawn, (place, origin, counters) in zip(self._all, found, strict=False):
                drawn.begin_at(step, place, origin, counters)

    def attempt_begins(self, step: int, oldest: int) -> None:
        """Drops what is before step `oldest`. Raises RuntimeError where an iterator is missing, or
        its batches were changed."""
        if not self._closed:
            self._random.complete()
        if self._all and step < self._step:
            raise RuntimeError(
                f"step {step} must be repeated, but this process resumed its iterators at step"
                f" {self._step}: it is replaced"
            )
        if self._missing:
            raise RuntimeError(
                "the rank's previous process had called job.iterate()"
                f" {len(self._missing)} times more before its loop than this one"
            )
        self._closed = True
        for drawn in self._all:
            drawn.attempt_begins(step, oldest)

    def committed(self, step: int) -> None:
        for drawn in self._all:
            drawn.committed(step)
