"""The content of a rank's record: where its loop is at the start of a step, and all its parts.

`records/sealed.py` defines the bytes around it and their digest. Nothing read here is executed;
malformed content raises `sealed.BadRecord`, and the next source is tried.
"""

from __future__ import annotations

import functools
import struct
from dataclasses import dataclass, field, replace
from typing import Any

from taskd.cython_api.attempt import Rows
from taskd.cython_api.part import end_to_end
from taskd.records import sealed
from taskd.records.sealed import BadRecord, Buffer, Seal
from taskd.worker.state import plain
from taskd.worker.state.part import Content


@dataclass
class Entry:
    """One record. `pass_number`, `index`: the loop's position. `fetch`: generators' states before
    the step's batch was fetched (None: no batch, or they are those of the part "random");
    `pass_random`: when the pass began. `loader`: see places.place. `batch`, `previous`:
    fingerprints of the step's batch and of the one before; `place`: the loader's before the latter,
    see batches.py. `calls`: the loop calls job.call; `committed`: what code between the calls has
    changed, as it was before, see training/calls.py. `plan`: of the pass, see training/loop.py.
    `epoch`, `ends`: see training/cursor.py. `draws`, `origins`: of job.iterate, see
    training/draws.py. `every`: steps between two whole records, see training/pace.py.

    `structure`: of the tensors, see structure.py; `orders`: per DDP, see communication/buckets.py.
    `mark`, `replica_set`: of the replicated tensors, see replicas.py, core/job/replica_sets.py.
    `nested`: records of the ranks that this one stands in for, see records/nested.py. `parts`: see
    part.py."""

    pass_number: int
    index: int
    mark: int
    structure: bytes
    parts: dict[str, Content]
    fetch: bytes | None = None
    pass_random: bytes = b""
    loader: bytes = b""
    batch: int | None = None
    previous: int | None = None
    place: bytes = b""
    calls: bool = False
    committed: bytes = b""
    plan: str = ""
    epoch: bytes = b""
    ends: bytes = b""
    draws: bytes = b""
    origins: bytes = b""
    every: int = 1
    orders: list[list[int] | None] = field(default_factory=list)
    replica_set: int = 0
    nested: bytes = b""

    def data(self, part: str) -> bytes:
        """What a part has, as bytes; b"" for one that is not there."""
        return self.parts[part].bytes() if part in self.parts else b""

    def memory(self, part: str) -> Buffer:
        """The bytes of a part's tensors, of a record that was read, as they lie there."""
        found = self.parts[part].memory if part in self.parts else b""
        assert isinstance(found, Buffer)
        return found

    @property
    def start(self) -> bytes:
        """Generators' states at the start of the step, before its batch was fetched."""
        return self.fetch or self.data("random")

    def kept(self, shards: bool = True) -> Entry:
        """The same, for this process, which goes on: of memory that changes it has a copy. Without
        `shards`: what stays in this process is left out."""
        parts = {name: content.kept() for name, content in self.parts.items() if name != SHARDS}
        if SHARDS in self.parts:
            parts[SHARDS] = self.parts[SHARDS].kept() if shards else Content(memory=None)
        return replace(self, parts=parts)


SHARDS = "shards"
# what changes in each record: pass_number, index, mark, every, batch, previous, and which of the
# last two and others are present
_NUMBERS = struct.Struct("<qqQQQQB")
_BATCH, _PREVIOUS, _FETCH, _CALLS = 1, 2, 4, 8
# one section each, in this order, before those of the parts: their values, then their memory.
# `layout` has what rarely changes between steps, and names the parts; agents read the second one,
# records/nested.py
_SECTIONS = (
    *("layout", "nested", "fetch", "pass_random", "loader", "structure", "draws", "origins"),
    *("committed", "plan", "epoch", "ends", "place"),
)


def encode(entry: Entry, seal: Seal, step: int) -> list[Buffer | Rows]:
    """Encode the record, in pieces. Memory on the CPU is not copied."""
    there = (
        (_BATCH if entry.batch is not None else 0)
        | (_PREVIOUS if entry.previous is not None else 0)
        | (_FETCH if entry.fetch is not None else 0)
        | (_CALLS if entry.calls else 0)
    )
    numbers = _NUMBERS.pack(
        entry.pass_number,
        entry.index,
        entry.mark,
        entry.every,
        entry.batch or 0,
        entry.previous or 0,
        there,
    )
    described, of_parts = end_to_end(entry.parts)
    layout = entry.orders, described
    sections: list[Buffer | Rows] = [
        _known[1] if _known[0] == layout else _layout(layout),
        entry.nested,
        entry.fetch or b"",
        entry.pass_random,
        entry.loader,
        entry.structure,
        entry.draws,
        entry.origins,
        entry.committed,
        _bytes(entry.plan),
        entry.epoch,
        entry.ends,
        entry.place,
        *of_parts,
    ]
    return seal.close(step, numbers, sections, entry.replica_set)


@functools.lru_cache(1)
def _bytes(text: str) -> bytes:
    """The same object for the same text: sealed sections that stay are not hashed again."""
    return text.encode()


_known: tuple[Any, bytes] = ((), b"")


def _layout(described: tuple[Any, ...]) -> bytes:
    """Encode the layout; `_known` until another one is."""
    global _known
    _known = described, plain.encode(described)
    return _known[1]


def decode(payload: Buffer, seal: Seal, step: int) -> Entry:
    """Decode a record's content. Raises BadRecord."""
    data, sections = seal.open(payload, step)
    own = len(_SECTIONS)
    if len(data) != _NUMBERS.size or len(sections) < own:
        raise BadRecord(f"{len(data)} bytes of fields and {len(sections)} sections: not a record")
    pass_number, index, mark, every, batch, previous, there = _NUMBERS.unpack(data)
    layout, nested, fetch, *rest = sections[:own]
    pass_random, loader, structure, draws, origins, *later = map(bytes, rest)
    committed, plan, epoch, ends, place = later
    orders, parts = _decoded(layout, sections[own:])
    return Entry(
        pass_number=pass_number,
        index=index,
        mark=mark,
        structure=structure,
        parts=parts,
        fetch=bytes(fetch) if there & _FETCH else None,
        pass_random=pass_random,
        loader=loader,
        batch=batch if there & _BATCH else None,
        previous=previous if there & _PREVIOUS else None,
        place=place,
        calls=bool(there & _CALLS),
        committed=committed,
        plan=plan.decode(errors="replace"),
        epoch=epoch,
        ends=ends,
        draws=draws,
        origins=origins,
        every=every,
        orders=orders,
        replica_set=sealed.replica_set(payload),
        nested=bytes(nested),
    )


def _decoded(layout: Buffer, sections: list[memoryview]) -> tuple[Any, dict[str, Content]]:
    try:
        orders, described = plain.decode(memoryview(layout))
        names = {str(name): bool(memory) for name, memory in described}
    except (plain.Unreadable, TypeError, ValueError) as error:
        raise BadRecord(f"its layout cannot be read: {error}") from None
    if not isinstance(orders, list) or not all(o is None or _numbers(o) for o in orders):
        raise BadRecord("its field orders is not a list of lists of numbers")
    if len(sections) != len(names) + sum(names.values()) or len(names) != len(described):
        raise BadRecord(f"it has {len(sections)} sections, which do not match its parts")
    rest = iter(sections)
    return orders, {
        name: Content(bytes(next(rest)), next(rest) if memory else b"")
        for name, memory in names.items()
    }


def _numbers(order: Any) -> bool:
    return isinstance(order, list) and all(type(i) is int and i >= 0 for i in order)
