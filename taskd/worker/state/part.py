"""One kind of state that a rank records, and the list of all of them.

What a step changes and no other rank has is a *part*: it is taken at the start and at the end of
each step, put back in a repair, and compared with what was taken before or with a record. Whoever
records, verifies or saves goes through the list and knows none of its parts. A new kind of state is
a class with these verbs and one line where the list is made (training_state.py,
repair/protected_rank.py). Only the replicated tensors are none: they are large, equal on all
replicas, and written in place (stripes.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from taskd.cython_api import frozen
from taskd.cython_api.attempt import Rows
from taskd.cython_api.part import Taker, Takers, Valuer
from taskd.records.sealed import Buffer
from taskd.worker.state import plain

# in which order parts are put back: gradients after the tensors whose they are, values that may
# depend on both, and random numbers last, as putting the others may draw
TENSORS, GRADIENTS, VALUES, NUMBERS = range(4)


class Content(NamedTuple):
    """What a part has. `data`: values; `memory`: the bytes of its tensors, end to end, or the
    tensors themselves, which are the script's: valid until a step goes on. None: they stay in this
    process, so that no record can be made. `version`: in this process, equal as long as `memory` is
    unchanged."""

    data: bytes | memoryview = b""
    memory: Buffer | Rows | None = b""
    version: Any = b""

    def flat(self) -> Buffer:
        """The bytes of its tensors, a copy where they may change."""
        assert self.memory is not None, "it stays in its process"
        return self.memory.gather(b"") if isinstance(self.memory, Rows) else self.memory

    def kept(self) -> Content:
        """The same, with memory that no attempt writes to, and without a tensor of the script."""
        if not isinstance(self.memory, Rows):
            return self
        return Content(self.data, self.flat())

    def bytes(self) -> bytes:
        """What it has, of a part that has only the one or the other."""
        return bytes(self.data or self.flat())


NOTHING = Content()
Contents = Mapping[str, Content]


class Part(Taker):
    """`name`: in records. `order`: see above. `label`: for the reader of a message, "" if the names
    inside tell enough. `shared`: a rank that stands in for others has each one's own while it
    computes their shares (elastic/away.py). `late`: what an attempt leaves of it is known once the
    attempt is committed.

    `take`, `still` and `renew` are explained at the base class: `take` returns what it did before
    as long as `still` finds it unchanged, else what `renew` makes."""

    name = label = ""
    order = VALUES
    shared, late = True, False
    content: Content | None

    def present(self) -> bool:
        """Whether there is anything to take; asked when tensors or objects were added."""
        return True

    def put(self, content: Content) -> None:
        """Restore what `take` returned, perhaps in another process. Raises RuntimeError if that was
        of another model."""
        raise NotImplementedError

    def let_go(self) -> None:
        """Hold nothing of the script's, which is about to go on."""

    def holds(self, content: Content) -> bool:
        """Whether it has what was just put."""
        now: Content = self.take(0)
        return (now.data == content.data or same(now.data, content.data)) and same_memory(
            now.memory, content.memory
        )


_UNSEEN = object()


class Values(Valuer, Part):
    """A part that is one value, encoded."""

    def __init__(self) -> None:
        self.found = _UNSEEN

    def refuse(self, value: Any) -> None:
        """Raise UnsupportedState, which names what in `value` cannot be recorded."""

    def renew(self, step: int, whole: bool) -> Content:
        found, self.found = self.found, _UNSEEN
        if found is _UNSEEN:
            found = self.value()
        try:
            # before encoding, so that a change in between shows the next time
            self.frozen, data = frozen.Frozen(found), plain.encode(found)
        except plain.Unrecordable:
            self.frozen = None
            self.refuse(found)
            raise
        return Content(data) if self.content is None or data != self.content.data else self.content


class Parts(Takers):
    """A rank's parts by name."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._all: dict[str, Part] = {}
        self.nothing = NOTHING
        # recorded content of parts that this process does not have yet
        self._waiting: dict[str, Content] = {}
        self._left: set[str] = set()
        self.add(*parts)

    def __getitem__(self, name: str) -> Part:
        return self._all[name]

    def __iter__(self) -> Iterator[Part]:
        return iter(self.present)

    def shared(self) -> set[str]:
        """The names of those of which each rank has its own while its share is computed."""
        return {name for name, part in self._all.items() if part.shared}

    def add(self, *parts: Part) -> None:
        for part in parts:
            self._all[part.name] = part
            if part.name in self._waiting:
                part.put(self._waiting.pop(part.name))
        self.arrange()

    def leave(self, name: str) -> None:
        """Somebody else takes it and puts it back."""
        del self._all[name]
        self._left.add(name)
        self.arrange()

    def arrange(self) -> None:
        """Look again which have anything."""
        self.present = sorted(
            [p for p in self._all.values() if p.present()], key=lambda part: part.order
        )
        self.late = [p for p in self.present if p.late]

    def put(self, contents: Contents, only: Callable[[Part], bool] = lambda part: True) -> None:
        """Restore those that are `only`. What a record has of taskd's own objects that this process
        makes later is restored then; their names have parentheses, which no argument of protect()
        has. Raises RuntimeError."""
        # some have nothing yet in a new process
        known = [p for n, p in self._all.items() if p in self.present or n in contents]
        for part in sorted(known, key=lambda part: part.order):
            content = contents.get(part.name)
            if content is not None and content.memory is not None and only(part):
                part.put(content)
        if len(known) > len(self.present):
            self.arrange()
        for name in contents.keys() - self._all.keys() - self._left:
            if "(" not in name:
                raise RuntimeError(f"the record has {name}, which this process does not protect")
            self._waiting[name] = contents[name]

    def differing(self, contents: Contents) -> list[str]:
        """The names of those that do not have what was just put."""
        return [
            part.label or part.name
            for part in self.present
            if (content := contents.get(part.name)) is not None
            and content.memory is not None
            and not part.holds(content)
        ]


def tensors(part: Part) -> bool:
    """Whether its content is memory, which a fault can take away."""
    return part.order in (TENSORS, GRADIENTS)


def same(a: Any, b: Any) -> bool:
    """Whether two encoded values are equal bit for bit, whatever the order of keys."""
    try:
        return plain.same(plain.decode(a), plain.decode(b))
    except plain.Unreadable:
        return False


def same_memory(a: Buffer | Rows | None, b: Buffer | Rows | None) -> bool:
    """Whether the memory of two contents is equal, as far as both have it."""
    if a is None or b is None:
        return True
    return memoryview(Content(memory=a).flat()) == memoryview(Content(memory=b).flat())
