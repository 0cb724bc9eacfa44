"""The content of a rank's record: its private state at the start of a step, as fields and tensors.

`records/sealed.py` defines the bytes around it and their digest. Nothing read here is executed;
malformed content raises `sealed.BadRecord`, and the next source is tried.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from taskd.cython_api.attempt import Rows
from taskd.records import sealed
from taskd.records.sealed import BadRecord, Buffer, Seal
from taskd.worker.state import plain
from taskd.worker.state.gradients import Row


@dataclass
class Entry:
    """One record's fields. `pass_number`, `index`: the loop's position. `random`: generators'
    states at the start of the step; `fetch`: before its batch was fetched (None: no batch);
    `pass_random`: when the pass began. `loader`: see loading.place. `batch`, `previous`:
    fingerprints of the step's batch and of the one before; `place`: the loader's before the latter,
    see batches.py. `settings`, `structure`: see training_state.py. `orders`, `synced`: per
    DDP, see communication/buckets.py. `skipped`: parameters, see gradients.py. `mark`: see
    replicas.py. `private`: memory of the private buffers; `shards`: of the private parameters and
    optimizer state, None in a record that never leaves its process, which still has them. `every`:
    steps between two whole records, see training/pace.py. `calls`: the loop calls job.call;
    `committed`: what code between the calls has changed, as it was before, see training/calls.py.
    `draws`, `origins`: of job.iterate, see training/draws.py. `plan`: of the pass, see
    training/loop.py. `replica_set`: see core/replica_sets.py. `nested`: records of the ranks that
    this one stands in for, see records/nested.py. `gradients`: (index of the parameter, attribute,
    tensor)."""

    pass_number: int
    index: int
    random: bytes
    fetch: bytes | None
    pass_random: bytes
    loader: bytes
    batch: int | None
    previous: int | None
    settings: bytes
    structure: bytes
    orders: list[list[int] | None]
    synced: tuple[bool, ...]
    skipped: tuple[int, ...]
    mark: int
    private: Buffer = b""
    shards: Buffer | Rows | None = b""
    every: int = 1
    calls: bool = False
    draws: bytes = b""
    origins: bytes = b""
    committed: bytes = b""
    plan: str = ""
    place: bytes = b""
    replica_set: int = 0
    nested: bytes = b""
    gradients: Sequence[tuple[int, str, torch.Tensor]] = field(default=())


# what changes in each record: pass_number, index, mark, every, batch, previous, and which of the
# last two and others are present
_NUMBERS = struct.Struct("<qqQQQQB")
_BATCH, _PREVIOUS, _FETCH, _CALLS = 1, 2, 4, 8
# one section each, in this order, before those of the gradients; empty for a `fetch` of None.
# `layout` holds what rarely changes between steps, and describes the gradients; agents read the
# second one, records/nested.py
_LARGE = (
    *("nested", "random", "fetch", "pass_random", "loader", "settings", "structure", "private"),
    *("shards", "draws", "origins", "committed", "plan", "place"),
)
_SECTIONS = ("layout", *_LARGE)
_LAYOUT = ("orders", "synced", "skipped", "gradients")
assert {
    "pass_number",
    "index",
    "mark",
    "every",
    "batch",
    "previous",
    "calls",
    "replica_set",
    *_LARGE,
    *_LAYOUT,
} == {f.name for f in fields(Entry)}


def encode(entry: Entry, seal: Seal, step: int) -> list[Buffer | Rows]:
    """Encode the record, in parts. Shards and gradients on the CPU are not copied."""
    described, memories = [], []
    for index, name, tensor in entry.gradients:
        shape, memory = plain.tensor_bytes(tensor)
        described.append((index, name, *shape))
        memories.append(memory)
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
    assert entry.shards is not None, "a record without shards stays in its process"
    sections: list[Buffer | Rows] = [
        _layout((tuple(entry.orders), entry.synced, entry.skipped, tuple(described))),
        entry.nested,
        entry.random,
        entry.fetch or b"",
        entry.pass_random,
        entry.loader,
        entry.settings,
        entry.structure,
        entry.private,
        entry.shards,
        entry.draws,
        entry.origins,
        entry.committed,
        _bytes(entry.plan),
        entry.place,
        *memories,
    ]
    return seal.close(step, numbers, sections, entry.replica_set)


_known: tuple[Any, bytes] = ((), b"")


@functools.lru_cache(1)
def _bytes(text: str) -> bytes:
    """The same object for the same text: sealed sections that stay are not hashed again."""
    return text.encode()


def _layout(described: tuple[Any, ...]) -> bytes:
    """Encode the layout; the same object if it equals the previous record's."""
    global _known
    if described != _known[0]:
        _known = described, plain.encode([list(part) for part in described])
    return _known[1]


def decode(payload: Buffer, seal: Seal, step: int) -> Entry:
    """Decode a record's content. Raises BadRecord."""
    data, sections = seal.open(payload, step)
    own = len(_SECTIONS)
    if len(data) != _NUMBERS.size or len(sections) < own:
        raise BadRecord(f"{len(data)} bytes of fields and {len(sections)} sections: not a record")
    pass_number, index, mark, every, batch, previous, there = _NUMBERS.unpack(data)
    layout, nested, random, fetch, pass_random, loader, settings, *rest = sections[:own]
    structure, private, shards, draws, origins, committed, plan, place = rest
    try:
        orders, synced, skipped, described = plain.decode(layout)
    except (plain.Unreadable, TypeError, ValueError) as error:
        raise BadRecord(f"its layout cannot be read: {error}") from None
    if not isinstance(orders, list) or not all(o is None or _numbers(o) for o in orders):
        raise BadRecord("its field orders is not a list of lists of numbers")
    if not _numbers(skipped):
        raise BadRecord("its field skipped is not a list of numbers")
    if (
        not isinstance(synced, list)
        or len(synced) != len(orders)
        or not all(type(s) is bool for s in synced)
    ):
        raise BadRecord("its field synced is not one bool per DDP")
    if not isinstance(described, list) or len(sections) != own + len(described):
        raise BadRecord(f"it has {len(sections)} sections, which do not match its gradients")
    return Entry(
        pass_number=pass_number,
        index=index,
        random=bytes(random),
        fetch=bytes(fetch) if there & _FETCH else None,
        pass_random=bytes(pass_random),
        loader=bytes(loader),
        batch=batch if there & _BATCH else None,
        previous=previous if there & _PREVIOUS else None,
        settings=bytes(settings),
        structure=bytes(structure),
        orders=orders,
        synced=tuple(synced),
        skipped=tuple(skipped),
        mark=mark,
        private=private,
        shards=shards,
        every=every,
        calls=bool(there & _CALLS),
        draws=bytes(draws),
        origins=bytes(origins),
        committed=bytes(committed),
        plan=bytes(plan).decode(errors="replace"),
        place=bytes(place),
        nested=bytes(nested),
        replica_set=sealed.replica_set(payload),
        gradients=[_gradient(row, at) for row, at in zip(described, sections[own:], strict=True)],
    )


def _gradient(row: Any, memory: memoryview) -> tuple[int, str, torch.Tensor]:
    if (
        not isinstance(row, tuple)
        or len(row) != 5
        or type(row[0]) is not int
        or not isinstance(row[1], str)
    ):
        raise BadRecord("the description of a gradient in it is malformed")
    try:
        return row[0], row[1], plain.tensor_of(*row[2:], memory)
    except plain.Unreadable as error:
        raise BadRecord(f"the gradient of parameter {row[0]}: {error}") from None


def _numbers(order: Any) -> bool:
    return isinstance(order, list) and all(type(i) is int and i >= 0 for i in order)


def rows(left: Sequence[Row]) -> list[tuple[int, str, torch.Tensor]]:
    return [(row.index, row.name, row.tensor) for row in left]
