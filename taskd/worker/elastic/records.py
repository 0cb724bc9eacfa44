"""The records of ranks that are away, where their stand-in finds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from taskd.records import nested, store
from taskd.records.sealed import BadRecord
from taskd.records.store import Entries
from taskd.worker.state import entry as entries
from taskd.worker.state.entry import Entry

Found = tuple[int | None, Entry]  # kind, None: that of the record it was nested in


def find(own: Entries, ranks: Iterable[int], step: int, inside: bytes) -> dict[int, Found]:
    """The records of `ranks` for `step`: nested in the stand-in's own, as `inside`, else in the
    file that the agent has put there. Raises RuntimeError if one is missing."""
    found: dict[int, Found] = {}
    kept: dict[int, bytes] | None = None
    for rank in ranks:
        kept = nested.unpack(inside) if kept is None else kept
        if (entry := _decoded(own, rank, step, kept.get(rank))) is not None:
            found[rank] = None, entry
            continue
        file = Entries(own.directory, store.away(rank), rank)
        kind, payload = file.read(step) or (None, None)
        if (entry := _decoded(file, rank, step, payload)) is None:
            raise RuntimeError(
                f"rank {own.seal.rank} stands in for rank {rank} and has no record of its step"
                f" {step}"
            )
        found[rank] = kind, entry
    return found


def _decoded(file: Entries, rank: int, step: int, payload: bytes | None) -> Entry | None:
    if payload is None:
        return None
    try:
        return entries.decode(payload, replace(file.seal, rank=rank), step)
    except BadRecord:
        return None
