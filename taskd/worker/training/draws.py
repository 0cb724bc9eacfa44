"""`job.iterate(source)`: batches that an attempt draws itself, and gets again if it is repeated.

Drawn batches are kept by *section*: inside an attempt at a step, or between two attempts. A section
that runs again gets the same batches, with the generators' states after each. A replacement begins
its source where the previous process was, and compares the batch before that place.

A source that is a function gives the loader of each pass. The end of a pass is drawn like a batch:
it is one StopIteration, after which the next pass begins. A replacement begins the present one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

from taskd import raised
from taskd.worker.state import loading, places, plain
from taskd.worker.state.content import fingerprint
from taskd.worker.state.kept import Keeper, Kept
from taskd.worker.state.random_state import RandomState

log = logging.getLogger("taskd.worker")

Section = tuple[int, bool]  # step, inside the attempt (else before it)
LoaderOf = Callable[[int], Iterable[Any]]  # of the pass with that number


@dataclass(frozen=True)
class Place:
    """How many batches of which pass were drawn, the fingerprint of the last one, and the
    generators' states and the source's own (see loading.state_of) before it was fetched. `state` of
    a pass that has not begun: places.place of the source of the one before."""

    number: int = 0  # of the pass
    count: int = 0
    print: int = 0
    before: bytes = b""
    state: bytes = b""


@dataclass
class _Item:
    """What one fetch gave, with the place after it and the generators' states; `last`: the source,
    or its pass, had ended."""

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


class Passes(Iterator[Any]):
    """Iterates over one pass after the other. In an unprotected job, over what a function gives."""

    def __init__(self, loader_of: LoaderOf) -> None:
        self._loader_of, self._number, self._drawn = loader_of, 0, False
        self.iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self.iterator is None:
            self.iterator = iter(self._loader_of(self._number))
        try:
            found = next(self.iterator)
        except StopIteration:
            self._drawn = True
            self.leave_pass()
            raise
        self._drawn = True
        return found

    def leave_pass(self) -> None:
        """Begin the next pass, if any batch of this one was drawn."""
        if self._drawn:
            self.iterator, self._number, self._drawn = None, self._number + 1, False

    def has_begun(self, iterator: Iterator[Any], before: Callable[[], None]) -> None:
        """The first pass has begun already, as `iterator`. `before` puts the generators back to
        where they were then."""
        self.iterator = iterator


class Drawn(Passes):
    """The iterator that `job.iterate` returns. `iterator`: what this process draws from, None
    before its first batch. `keeps`: batches may be asked for again."""

    def __init__(
        self,
        source: Iterable[Any] | LoaderOf,
        random: RandomState,
        leave: Callable[[Any], None],
        restored: Callable[[], Collection[int]],
        draw: Callable[[Iterator[Any]], Any],
    ) -> None:
        """`leave`: takes a loader whose state is left to this object. `restored`: the ids of
        objects that others restore; `draw`: next(), or what does it."""
        self._random, self._leave, self._restored = random, leave, restored
        self._draw = draw
        self._each_pass = source if not isinstance(source, Iterable) else None
        self._source: Any = source
        self.iterator: Iterator[Any] | None = None
        # pass -> the generators' states and the loader's counters (see places.place) before it
        self._origins: dict[int, tuple[bytes, bytes]] = {}
        self._kept: dict[Section, _Kept] = {}
        self._section: Section = (0, False)
        self._at = 0  # how many of the section's items have been given
        self.place, self.keeps = Place(), True
        self._keeper = Keeper("the item of job.iterate")
        self._take()

    def _take(self) -> None:
        """Take the source of the present pass. A later pass has a generator of its own only if it
        begins by the pass's number."""
        if self._each_pass is not None:
            self._source = self._each_pass(self.place.number)
        self._leave(self._source)
        if self.place.number == 0:
            self._random.watch(places.generators(self._source))

    def __next__(self) -> Any:
        kept = self._kept.setdefault(self._section, _Kept(self.place))
        if not self.keeps and self._at == len(kept.items):
            return self._pass_on()
        if self._at < len(kept.items):
            item = kept.items[self._at]
            self._random.restore(item.after)
        else:
            kept.items.append(item := self._fetch())
        self._at, self.place = self._at + 1, item.place
        if item.last:
            raise StopIteration
        return item.value.value

    def _pass_on(self) -> Any:
        """A batch that is not kept."""
        try:
            found = self._draw(self._open())
        except StopIteration:
            self.place = self._end()
            raise
        self.place = replace(self.place, count=self.place.count + 1)
        return found

    def leave_pass(self) -> None:
        if not self.place.count:
            return
        kept = self._kept.setdefault(self._section, _Kept(self.place))
        if not self.keeps and self._at == len(kept.items):
            self.place = self._end()
            return
        if self._at == len(kept.items):
            end = self._keeper.keep(None), self._end(), self._random.snapshot()
            kept.items.append(_Item(*end, last=True))
        self.place = kept.items[self._at].place
        self._at += 1

    def has_begun(self, iterator: Iterator[Any], before: Callable[[], None]) -> None:
        if self.place != Place() or self.iterator is not None:
            return  # a replacement begins elsewhere
        now = self._random.snapshot()
        before()
        self._origins[0] = self._random.snapshot(), places.place(self._source)
        self._random.restore(now)
        self.iterator = iterator

    def _end(self) -> Place:
        """The present pass is over."""
        if self._each_pass is None:
            return self.place
        self.iterator = None
        return Place(self.place.number + 1, state=places.place(self._source))

    def _fetch(self) -> _Item:
        before = self._random.snapshot()
        # if the source has not begun, its beginning is known
        state = loading.state_of(self._source) if self.iterator is not None else b""
        try:
            value = self._draw(self._open())
        except StopIteration:
            return _Item(self._keeper.keep(None), self._end(), self._random.snapshot(), last=True)
        except BaseException:
            if self.place.count == 0:
                self.iterator = None  # what it drew from the generators as it began is drawn again
            raise
        kept = self._keeper.keep(value)
        place = Place(self.place.number, self.place.count + 1, kept.print, before, state)
        return _Item(kept, place, self._random.snapshot())

    def _open(self) -> Iterator[Any]:
        if self.iterator is None:
            if self.place.number:
                self._take()
            self._origins = {n: o for n, o in self._origins.items() if n == self.place.number - 1}
            origin = self._random.snapshot(), places.place(self._source)
            self._origins[self.place.number] = origin
            self.iterator = iter(self._source)
        return self.iterator

    @property
    def origin(self) -> tuple[bytes, bytes]:
        """How the present pass began; nothing if it has not."""
        return self._origins.get(self.place.number, (b"", b""))

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
        self._section, self._at = (step, True), 0

    def committed(self, step: int) -> None:
        """What is drawn now is drawn before the attempt at `step`."""
        self._section, self._at = (step, False), 0

    def begin_at(self, step: int, place: Place, origin: tuple[bytes, bytes]) -> None:
        """Begin before `step` where the previous process was. Raises RuntimeError if the source
        gives other batches than there."""
        self.place, self._section, self._at = place, (step, False), 0
        if place.count == 0:
            if place.number:
                self._between_passes()
            return
        self._origins = {place.number: origin}
        if place.number:
            self._take()
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
            self._random.restore(present)

    def _between_passes(self) -> None:
        """The present pass has not begun. A loader that counts its passes, which is given for each
        of them, counts on."""
        assert self._each_pass is not None
        self.iterator, number = None, self.place.number
        if all(self._each_pass(n) is self._source for n in (number, number - 1)):
            places.put_place(self._source, self.place.state, self._restored())

    def _goes_on(self, way: str) -> bool:
        try:
            return self._begun(way)
        except Exception as error:  # the script's code
            raised.heed(error)
            name = type(self._source).__name__
            log.warning("%s (%s) raised %s: %s", name, way, type(error).__name__, error)
            return False

    def _begun(self, way: str) -> bool:
        """Begin at the place; return whether the batch before it is the same."""
        source = self._source
        if way == loading.WHOLE and self.iterator is source:
            return False  # it cannot begin anew
        origin, counters = self.origin
        self._random.restore(origin)
        places.put_place(source, counters, self._restored())
        if way != loading.MOVED:
            places.release(source)
        begun = loading.begin(source, self.place.count - 1, way, self.place.state)
        self.iterator = places.releasing(source, begun) if way == loading.MOVED else begun
        # before the first, the source had not begun: what it drew then is drawn by now
        if not loading.has_workers(source) and self.place.count > 1:
            self._random.restore(self.place.before)
        return fingerprint(next(self.iterator, None)) == self.place.print


class Draws:
    """The iterators of one rank, in the order in which its script has made them."""

    def __init__(
        self,
        random: RandomState,
        apart: Callable[[], AbstractContextManager[None]],
        restored: Callable[[], Collection[int]] = frozenset,
        draw: Callable[[Iterator[Any]], Any] = next,
    ) -> None:
        """`apart`: a context in which a loader is read without the other ranks. `restored`,
        `draw`: see Drawn."""
        self._random, self._apart, self._restored = random, apart, restored
        self._draw = draw
        self._all: list[Drawn] = []
        # of iterators that a replacement has not made yet
        self._missing: list[tuple[Place, tuple[bytes, bytes]]] = []
        self._step = 0  # this process begins before it
        self._closed = False
        self.idle = False  # there are none, and there will be none

    def add(
        self, source: Iterable[Any] | LoaderOf, leave: Callable[[Any], None] = lambda loader: None
    ) -> Drawn:
        """Raises RuntimeError after the first attempt: a replacement would not get that far."""
        if self._closed:
            raise RuntimeError(
                "job.iterate() was called after the first attempt: call it before the loop, with an"
                " iterator that goes on over all epochs"
            )
        drawn = Drawn(source, self._random, leave, self._restored, self._draw)
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
        return plain.encode([(p.number, p.count, p.print, p.before, p.state) for p in places])

    def origins(self) -> bytes:
        """How all began, for a record; seldom changes."""
        return plain.encode([d.origin for d in self._all]) if self._all else b""

    def begin_at(self, step: int, places: bytes, origins: bytes) -> None:
        """Begin before `step`, where the previous process was; iterators that are made later, too.
        Raises RuntimeError if that is not possible."""
        if not places:
            return
        both = zip(plain.decode(places), plain.decode(origins), strict=True)
        found = [(Place(*where), how) for where, how in both]
        self._step, self._missing = step, found[len(self._all) :]
        with self._apart():
            for drawn, (place, origin) in zip(self._all, found, strict=False):
                drawn.begin_at(step, place, origin)

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
        self._closed, self.idle = True, not self._all
        for drawn in self._all:
            drawn.attempt_begins(step, oldest)

    def committed(self, step: int) -> None:
        for drawn in self._all:
            drawn.committed(step)
