"""The batches of the current pass that may be handed out again."""

from __future__ import annotations

from typing import Any

from taskd.worker.state import plain
from taskd.worker.state.kept import Keeper, Kept


class Batches:
    """Batches by step. `fetched`: the generators' states before and after the fetch; `place`: the
    loader's own state before it, with that of the generators, b"" if it has none."""

    def __init__(self) -> None:
        self._batches: dict[int, Kept] = {}
        self._fresh = -1  # the step whose batch nobody has had yet
        self._keeper = Keeper()
        self._fetched: dict[int, tuple[bytes, bytes]] = {}
        self._prints: dict[int, int] = {}
        self._places: dict[int, bytes] = {}

    def __contains__(self, step: int) -> bool:
        return step in self._batches

    def keep(
        self, step: int, batch: Any, before: bytes, after: bytes, oldest: int, state: bytes = b""
    ) -> None:
        """Keep a step's batch, and drop those before step `oldest`. `state`: see loading.state."""
        kept_batch, self._fresh = self._keeper.keep(batch), step
        made: list[tuple[dict[int, Any], Any]] = [
            (self._batches, kept_batch),
            (self._fetched, (before, after)),
            (self._prints, kept_batch.print),
            (self._places, plain.encode((state, before)) if state else b""),
        ]
        for kept, value in made:
            for old in [s for s in kept if s < oldest]:
                del kept[old]
            kept[step] = value

    def note(self, step: int, print: int, oldest: int) -> None:
        """Note the fingerprint of what a step is computed from; the batch is kept elsewhere."""
        self._prints = {s: p for s, p in self._prints.items() if s >= oldest} | {step: print}

    def begin_at(self, step: int, print: int | None, place: bytes) -> None:
        """Begin with what a record for the start of `step` has of the batch before."""
        if print is not None:
            self._prints[step - 1], self._places[step - 1] = print, place

    def clear(self) -> None:
        """Drop all batches: a new pass begins."""
        for kept in (self._batches, self._fetched, self._prints, self._places):
            kept.clear()

    def batch(self, step: int, others: bool = False) -> Any:
        """`others`: batches of other ranks have been fetched since, perhaps into the same memory.
        Raises RuntimeError if it has been changed and was not copied."""
        fresh, self._fresh = self._fresh == step and not others, -1
        kept = self._batches[step]
        return kept.value if fresh else kept.again(f"the batch of step {step}")

    def pop(self, step: int) -> Any:
        return self._batches.pop(step).again(f"the batch of step {step}")

    def fetched(self, step: int) -> tuple[bytes, bytes]:
        return self._fetched[step]

    def place(self, step: int) -> bytes:
        return self._places.get(step, b"")

    def fingerprint(self, step: int) -> int | None:
        return self._prints.get(step)
