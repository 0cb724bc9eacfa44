"""Describes what a rank has of each tensor and where its memory is, so that a checkpoint can be
made of the records of all ranks, also of those that are dead."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from taskd.worker.state import plain, sharded
from taskd.worker.state.given import Given

LOOSE = "(parameter)"  # instead of a name: a parameter that only its optimizer has
Key = tuple[str, Any, str]  # (owner's name, where in it, which tensor)
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Piece:
    """`shape`, `stride`: of this rank's piece. `size`: of the whole tensor. `offsets`: where in it
    the piece begins; None where it is not a block of it. `ranks`: that share the tensor, () for an
    ordinary one. `private`: it is in the rank's record, and `at` its place in bytes among the
    buffers or the shards there; else the number of a replicated tensor."""

    key: Key
    buffer: bool
    saved: bool  # in state_dict(): all but non-persistent buffers
    dtype: str
    shape: Sizes
    stride: Sizes
    size: Sizes
    offsets: Sizes | None
    ranks: Sizes
    private: bool
    at: int

    @property
    def path(self) -> tuple[str, ...]:
        """Where it is in the state_dicts, by name."""
        owner, where, name = self.key
        if not name:
            return owner, where
        return (owner, name, str(where)) if name == LOOSE else (owner, "state", str(where), name)

    @property
    def nbytes(self) -> int:
        return count(self.shape) * plain.dtype_of(self.dtype).itemsize

    @property
    def geometry(self) -> tuple[Any, ...]:
        """What must be the same where a job resumes from a record."""
        return self.dtype, self.shape, self.stride, self.size, self.offsets, self.ranks

    def says(self) -> str:
        """In words, what this rank has of the tensor."""
        whole = f"{self.dtype} {list(self.size)}"
        if not self.ranks:
            return f"a whole tensor {whole}"
        among = f"of {whole} on ranks {list(self.ranks)}"
        if self.offsets is None:
            return f"a part {among}"
        ends = [begin + length for begin, length in zip(self.offsets, self.shape, strict=True)]
        return f"the part {list(self.offsets)} to {ends} {among}"


Placed = tuple[Key, torch.Tensor, bool, int]  # key, tensor; private, at: see Piece


def count(sizes: Iterable[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def of(placed: Iterable[Placed], given: Given) -> list[Piece]:
    """The pieces of this rank."""
    silent = _not_persistent(given)
    buffers = {
        (name, key, "")
        for name, root in given.modules.items()
        for key, _ in root.named_buffers(remove_duplicate=False)
    }
    found = []
    for key, tensor, private, at in placed:
        here = sharded.local(tensor)
        offsets, ranks = sharded.place(tensor)
        found.append(
            Piece(
                key,
                key in buffers,
                key not in silent,
                plain.dtype_name(here.dtype),
                tuple(here.shape),
                here.stride(),
                tuple(tensor.shape),
                offsets,
                ranks,
                private,
                at,
            )
        )
    return found


def encode(pieces: Iterable[Piece], groups: dict[str, list[int]]) -> dict[str, Any]:
    """As plain values. `groups`: the number of parameters in each group of each optimizer."""
    known: dict[Sizes, int] = {}
    rows = []
    for p in pieces:
        number = known.setdefault(p.ranks, len(known))  # the ranks are many, and often the same
        row = (p.key, p.buffer, p.saved, p.dtype, p.shape, p.stride, p.size, p.offsets)
        rows.append((*row, number, p.private, p.at))
    return {"ranks": list(known), "rows": rows, "groups": groups}


def decode(found: Any) -> list[Piece]:
    """Raises plain.Unreadable."""
    try:
        ranks = [tuple(r) for r in found["ranks"]]
        rows = [(*row[:8], ranks[row[8]], *row[9:]) for row in found["rows"]]
        return [Piece(*row) for row in rows]
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise plain.Unreadable(
            f"its list of pieces is malformed: {type(error).__name__}: {error}"
        ) from None


def mismatch(mine: Iterable[Piece], theirs: Iterable[Piece]) -> str | None:
    """Describe the first tensor of which this rank has another piece than when `theirs` was
    written, or None."""
    here, there = ({p.key: p for p in pieces} for pieces in (mine, theirs))
    for key in (*there, *(k for k in here if k not in there)):
        one, other = there.get(key), here.get(key)
        if one is not None and other is not None and one.geometry == other.geometry:
            continue
        had, has = (p.says() if p is not None else "nothing" for p in (one, other))
        return f"of {'.'.join(map(str, (one or other).path))} the rank had {had}, and has {has}"  # type: ignore[union-attr]
    return None


def values(pieces: Iterable[Piece]) -> list[Piece]:
    """The pieces that a process has before it conforms to a record: parameters."""
    return [p for p in pieces if not p.buffer and p.key[2] in ("", LOOSE)]


def _not_persistent(given: Given) -> set[Key]:
    return {
        (name, f"{path}.{key}" if path else key, "")
        for name, root in given.modules.items()
        for path, module in root.named_modules(remove_duplicate=False)
        for key in module._non_persistent_buffers_set
    }
