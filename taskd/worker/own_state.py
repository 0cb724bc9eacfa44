"""A rank's own state: what is recorded of it, and whether it has changed."""

from __future__ import annotations

from typing import NamedTuple

from taskd.worker import buckets, replicas
from taskd.worker.state import TrainingState
from taskd.worker.verify import gather


class Own(NamedTuple):
    """`random`: generators' states; `settings`: see state.py; `buffers`: memory of private ones;
    `synced`: see buckets.py; `mark`: of the replicated state, see replicas.py; `draws`: places of
    job.iterate; `shards`: memory of private parameters and optimizer state, None if not taken."""

    random: bytes
    settings: bytes
    buffers: bytes
    synced: tuple[bool, ...]
    mark: int
    draws: bytes
    shards: bytes | None


class OwnState:
    """Takes a rank's own state, gradients apart."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._buffers = self._shards = b""  # what was gathered last
        self._versions = b""
        self._mark = 0

    def take(self, random: bytes, draws: bytes, step: int, whole: bool) -> Own:
        """The state as it is now. `random`, `draws`: numbers' states and places that belong to it;
        `step`: that it will be the start of; `whole`: with its shards."""
        state = self._state
        rows = state.buffer_rows
        self._buffers = rows.gather(self._buffers) if rows.hosted else gather(state.buffers)
        rows = state.shard_rows
        if not whole:
            self._shards = b""  # no second copy of them stays
        else:
            self._shards = rows.gather(self._shards) if rows.hosted else gather(state.shards)
        return Own(
            random,
            state.settings(),
            self._buffers,
            buckets.synced(state.ddps),
            replicas.mark(state.replicated_rows, step),
            draws,
            self._shards if whole else None,
        )

    def same(self, own: Own, last: Own) -> bool:
        """Whether `own`, just taken, equals `last`, taken when `note` was called."""
        if own._replace(shards=None) != last._replace(shards=None):
            return False
        if own.shards is None or last.shards is None:
            return self._state.versions() == self._versions
        return own.shards == last.shards

    def note(self, step: int, mark: int | None = None) -> None:
        """Parameters and optimizer state are now those of the start of `step`. `mark`: of the
        replicated ones, where it is known."""
        self._versions = self._state.versions()
        self._mark = replicas.mark(self._state.replicated_rows, step) if mark is None else mark

    def is_clean(self, step: int) -> bool:
        """Whether they still are; `parameter.data` is written to without a word of torch's."""
        return (
            self._state.versions() == self._versions
            and replicas.mark(self._state.replicated_rows, step) == self._mark
        )
