"""What a rank's record says: its private state at the start of a step, as fields and tensors.

`record.py` has the bytes around it and their digest. Nothing that is read here is executed; what
does not fit is a `record.BadRecord`, and the next source is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from taskd.record import BadRecord, Buffer, Seal
from taskd.worker import plain
from taskd.worker.gradients import Row


@dataclass
class Entry:
    """`pass_number` and `index`: where the loop is. `random`: generators' states at the start of
    the step, `fetch`: before its batch was fetched (None: it has none), `pass_random`: when the
    pass began. `loader`: see loading.place. `batch`, `previous`: fingerprints of the step's batch
    and of the one before. `settings`, `structure`: see state.py. `orders`, `synced`: per DDP, see
    buckets.py. `skipped`: parameters, see gradients.py. `mark`: see replicas.py. `private`: memory
    of the private tensors. `gradients`: (index of the parameter, attribute, tensor)."""

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
    gradients: Sequence[tuple[int, str, torch.Tensor]] = field(default=())


# what is small, and other in each record
_TYPES: dict[str, tuple[type, ...]] = {
    "pass_number": (int,),
    "index": (int,),
    "batch": (int, type(None)),
    "previous": (int, type(None)),
    "orders": (list,),
    "synced": (list,),
    "skipped": (list,),
    "mark": (int,),
}
# one section each, in this order, before those of the gradients; empty for a `fetch` of None
_SECTIONS = ("random", "fetch", "pass_random", "loader", "settings", "structure", "private")
assert {*_TYPES, *_SECTIONS, "gradients"} == {f.name for f in fields(Entry)}


def encode(entry: Entry, seal: Seal, step: int) -> list[Buffer]:
    """The record, in parts. Gradients on the CPU are not copied here."""
    values: dict[str, Any] = {
        "pass_number": entry.pass_number,
        "index": entry.index,
        "batch": entry.batch,
        "previous": entry.previous,
        "orders": entry.orders,
        "synced": list(entry.synced),
        "skipped": list(entry.skipped),
        "mark": entry.mark,
    }
    sections: list[Buffer] = [
        entry.random,
        entry.fetch or b"",
        entry.pass_random,
        entry.loader,
        entry.settings,
        entry.structure,
        entry.private,
    ]
    described = []
    for index, name, tensor in entry.gradients:
        shape, memory = plain.tensor_bytes(tensor)
        described.append((index, name, *shape))
        sections.append(memory)
    values["gradients"] = described
    return seal.close(step, plain.encode(values), sections)


def decode(payload: Buffer, seal: Seal, step: int) -> Entry:
    """Raises BadRecord."""
    data, sections = seal.open(payload, step)
    try:
        values = plain.decode(data)
    except plain.Unreadable as error:
        raise BadRecord(str(error)) from None
    if not isinstance(values, dict) or set(values) != {*_TYPES, "gradients"}:
        raise BadRecord("its fields are not those of a record")
    for name, kinds in _TYPES.items():
        if type(values[name]) not in kinds:
            raise BadRecord(f"its field {name} is a {type(values[name]).__name__}")
    if not all(order is None or _numbers(order) for order in values["orders"]):
        raise BadRecord("its field orders is not a list of lists of numbers")
    if not _numbers(values["skipped"]):
        raise BadRecord("its field skipped is not a list of numbers")
    if len(values["synced"]) != len(values["orders"]) or not all(
        type(s) is bool for s in values["synced"]
    ):
        raise BadRecord("its field synced is not a truth value for each DDP")
    described = values.pop("gradients")
    own = len(_SECTIONS)
    if not isinstance(described, list) or len(sections) != own + len(described):
        raise BadRecord(f"it has {len(sections)} sections, which do not fit its gradients")
    gradients = []
    for row, memory in zip(described, sections[own:], strict=True):
        if (
            not isinstance(row, tuple)
            or len(row) != 5
            or type(row[0]) is not int
            or not isinstance(row[1], str)
        ):
            raise BadRecord("a gradient in it is not described as one")
        try:
            gradients.append((row[0], row[1], plain.tensor_of(*row[2:], memory)))
        except plain.Unreadable as error:
            raise BadRecord(f"the gradient of parameter {row[0]}: {error}") from None
    large = dict(zip(_SECTIONS, map(bytes, sections), strict=False))
    values.update(large, synced=tuple(values["synced"]), skipped=tuple(values["skipped"]))
    values["fetch"] = values["fetch"] or None
    return Entry(**values, gradients=gradients)


def _numbers(order: Any) -> bool:
    return isinstance(order, list) and all(type(i) is int and i >= 0 for i in order)


def rows(left: Sequence[Row]) -> list[tuple[int, str, torch.Tensor]]:
    return [(row.index, row.name, row.tensor) for row in left]
