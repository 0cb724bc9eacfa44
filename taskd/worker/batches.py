"""The batches of the current pass that may be handed out again: those of the last two steps."""

from __future__ import annotations

from typing import Any

from taskd.worker import loading


class Batches:
    """Batches by step. `fetched`: the generators' states before and after the fetch."""

    def __init__(self) -> None:
        self._batches: dict[int, Any] = {}
        self._fetched: dict[int, tuple[bytes, bytes]] = {}
        self._prints: dict[int, int] = {}

    def __contains__(self, step: int) -> bool:
        return step in self._batches

    def keep(self, step: int, batch: Any, before: bytes, after: bytes) -> None:
        """Keep a step's batch, and drop those no longer needed."""
        made: list[tuple[dict[int, Any], Any]] = [
            (self._batches, batch),
            (self._fetched, (before, after)),
            (self._prints, loading.fingerprint(batch)),
        ]
        for kept, value in made:
            for old in [s for s in kept if s != step - 1]:
                del kept[old]
            kept[step] = value

    def note(self, step: int, print: int) -> None:
        """Note the fingerprint of what a step is computed from; the batch is kept elsewhere."""
        self._prints = {s: p for s, p in self._prints.items() if s == step - 1} | {step: print}

    def clear(self) -> None:
        """Drop all batches: a new pass begins."""
        for kept in (self._batches, self._fetched, self._prints):
            kept.clear()

    def batch(self, step: int) -> Any:
        return self._batches[step]

    def pop(self, step: int) -> Any:
        return self._batches.pop(step)

    def fetched(self, step: int) -> tuple[bytes, bytes]:
        return self._fetched[step]

    def fingerprint(self, step: int) -> int | None:
        return self._prints.get(step)
