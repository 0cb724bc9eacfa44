"""Tensors that a rank has alone: buffers, which are small, and shards (parameters and optimizer
state that differ between ranks), which may be most of its memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.worker.state.memory import gather, scatter
from taskd.worker.state.part import NOTHING, TENSORS, Content, Part

if TYPE_CHECKING:
    from taskd.worker.state.training_state import TrainingState


class Buffers(Part):
    """The modules' buffers, as bytes: they may change without a trace."""

    name, order = "buffers", TENSORS

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def present(self) -> bool:
        return bool(self._state.buffers)

    def renew(self, step: int, whole: bool) -> Content:
        rows, known = self._state.buffer_rows, self.content or NOTHING
        found = rows.gather(known.bytes()) if rows.hosted else gather(self._state.buffers)
        return Content(memory=found) if found != known.memory else known

    def put(self, content: Content) -> None:
        scatter(content.flat(), self._state.buffers)


class Shards(Part):
    """The memory itself where it is on the CPU; version counters and a sample tell whether it has
    changed."""

    name, order, shared = "shards", TENSORS, False

    def __init__(self, state: TrainingState) -> None:
        self._state = state

    def present(self) -> bool:
        return bool(self._state.shards)

    def renew(self, step: int, whole: bool) -> Content:
        rows = self._state.shard_rows
        if not whole:
            return Content(memory=None, version=self.version(step))
        memory = rows if rows.hosted else gather(self._state.shards)
        return Content(memory=memory, version=self.version(step))

    def version(self, step: int) -> bytes:
        rows = self._state.shard_rows
        return rows.versions() + rows.mark(step).to_bytes(8, "little")

    def put(self, content: Content) -> None:
        scatter(content.flat(), self._state.shards)
