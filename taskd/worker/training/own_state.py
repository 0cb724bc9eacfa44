"""A rank's own state: what is recorded of it, and whether it has changed."""

from __future__ import annotations

from typing import NamedTuple

from taskd.cython_api.attempt import Rows
from taskd.worker.communication import buckets
from taskd.worker.state import replicas
from taskd.worker.state.memory import gather
from taskd.worker.state.training_state import TrainingState


class Own(NamedTuple):
    """`random`: generators' states; `settings`: see state/training_state.py; `buffers`: memory of
    private ones; `synced`: see communication/buckets.py; `mark`: of the replicated state, see
    state/replicas.py; `draws`: places of job.iterate; `shards`: private parameters and optimizer
    state, None if not taken; the tensors themselves if they are on the CPU."""

    random: bytes
    settings: bytes
    buffers: bytes
    synced: tuple[bool, ...]
    mark: int
    draws: bytes
    shards: bytes | Rows | None


class OwnState:
    """Takes a rank's own state, gradients apart."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._buffers = b""  # what was gathered last
        self._versions = b""
        self._mark = self._mark_of_shards = 0

    def collect(self, random: bytes, draws: bytes, step: int, whole: bool) -> Own:
        """The state as it is now. `random`, `draws`: numbers' states and places that belong to it;
        `step`: that it will be the start of; `whole`: with its shards."""
        state = self._state
        rows = state.buffer_rows
        self._buffers = rows.gather(self._buffers) if rows.hosted else gather(state.buffers)
        shards: bytes | Rows | None = b"" if whole else None
        if whole and state.shards:
            rows = state.shard_rows
            shards = rows if rows.hosted else gather(state.shards)
        return Own(
            random,
            state.settings(),
            self._buffers,
            buckets.synced(state.ddps),
            replicas.mark(state.replicated_rows, step),
            draws,
            shards,
        )

    def same(self, own: Own, last: Own) -> bool:
        """Whether `own`, just taken, equals `last`, taken when `note` was called."""
        if own[:-1] != last[:-1]:
            return False
        if isinstance(own.shards, bytes) and isinstance(last.shards, bytes):
            return own.shards == last.shards
        return self._untouched(self._step)

    def note(self, step: int, mark: int | None = None) -> None:
        """Note that parameters and optimizer state are those of the start of `step`. `mark`: of the
        replicated ones, if known."""
        self._versions, self._step = self._state.versions(), step
        self._mark = replicas.mark(self._state.replicated_rows, step) if mark is None else mark
        if self._state.shards:
            self._mark_of_shards = replicas.mark(self._state.shard_rows, step)

    def is_clean(self, step: int) -> bool:
        """Whether they still are; writes through `.data` do not change torch's version counter."""
        return (
            self._untouched(step) and replicas.mark(self._state.replicated_rows, step) == self._mark
        )

    _step = 0  # of the last `note`

    def _untouched(self, step: int) -> bool:
        return self._state.versions() == self._versions and (
            not self._state.shards
            or replicas.mark(self._state.shard_rows, step) == self._mark_of_shards
        )
