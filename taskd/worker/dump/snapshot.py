"""The state that one rank saves for all: as it is in memory, or a copy, which is written while the
rank trains."""

from __future__ import annotations

import copy
import errno
import threading
from dataclasses import dataclass, field
from typing import Any

import torch

from taskd.records import room
from taskd.worker.state import plain, sharded
from taskd.worker.state.memory import gather
from taskd.worker.state.pieces import Key, Piece
from taskd.worker.state.training_state import TrainingState


@dataclass(frozen=True)
class Snapshot:
    """`rows`: the memory of what is replicated, by number. `own`: of a rank that has all state, its
    buffers and shards; None where they are in the records. `values`: see `state_dict`."""

    pieces: list[Piece]
    names: list[tuple[Key, int]]
    rows: list[torch.Tensor]
    own: tuple[bytes, bytes] | None
    values: dict[str, Any]
    dropped: threading.Event = field(default_factory=threading.Event)  # nobody waits for it

    @property
    def scattered(self) -> bool:
        return self.own is None

    def tensor(self, piece: Piece) -> torch.Tensor:
        """A replicated piece, as a tensor of the CPU. Raises OSError if it was dropped."""
        if self.dropped.is_set():
            raise OSError(errno.ECANCELED, "another dump takes its place")
        return _shaped(self.rows[piece.at].cpu(), piece.dtype, piece.shape, piece.stride)


def of(state: TrainingState) -> Snapshot:
    """The state itself: valid until it changes."""
    own = None if state.scattered else (gather(state.buffers), gather(state.shards))
    return Snapshot(state.pieces(), state.names(), state.replicated, own, state_dict(state))


def copied(state: TrainingState) -> Snapshot:
    """A copy of the state, in the CPU's memory. Raises RuntimeError where that is short."""
    held = of(state)
    rows = [row.detach().to("cpu", copy=True) for row in held.rows]
    known = {row.data_ptr(): made for row, made in zip(held.rows, rows, strict=True) if len(row)}
    values = _copied(held.values, known)
    return Snapshot(held.pieces, held.names, rows, held.own, values)


def fits(state: TrainingState) -> bool:
    """Whether there is room for a copy of the state."""
    size = sum(len(row) for row in state.replicated)
    found = room.of_node()
    return found is None or not found.lacks(size)


def state_dict(state: TrainingState) -> dict[str, Any]:
    """The state as the script knows it: name given to protect() -> that object's state_dict().
    State that taskd found in torch, under names in parentheses, is not included: it is in the
    records."""
    objects = {**state.modules, **state.optimizers, **state.small}
    return {name: value.state_dict() for name, value in objects.items() if name[:1] != "("}


def _copied(value: Any, known: dict[int, torch.Tensor]) -> Any:
    """A copy of a state_dict(), in which tensors of replicated state are those already copied, and
    shards, which come from the records, are left as they are."""
    if isinstance(value, torch.Tensor):
        if sharded.is_sharded(value):
            return value
        if (row := known.get(value.data_ptr())) is not None and len(row) == value.nbytes:
            return _shaped(row, plain.dtype_name(value.dtype), value.shape, value.stride())
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _copied(inner, known) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_copied(inner, known) for inner in value)
    return copy.deepcopy(value)


def _shaped(row: torch.Tensor, dtype: str, shape: Any, stride: Any) -> torch.Tensor:
    return torch.as_strided(row.view(plain.dtype_of(dtype)), shape, stride)
