"""The batches of the current pass that may be handed out again."""

from __future__ import annotations

from typing import Any, NamedTuple

from taskd.worker.state import plain
from taskd.worker.state.kept import Keeper, Kept


class _Fetched(NamedTuple):
    """`states`: the generators' before and after the fetch. `place`: the loader's own state before
    it, with that of the generators, b"" if the fetch needs neither."""

    batch: Kept | None
    print: int
    states: tuple[bytes, bytes] = (b"", b"")
    place: bytes = b""


class Batches:
    """Batches by step."""

    def __init__(self) -> None:
        self._steps: dict[int, _Fetched] = {}
        self.newest = -1  # a later step has no batch here
        self._fresh = -1  # the step whose batch nobody has had yet
        self._keeper = Keeper("the batch")

    def __contains__(self, step: int) -> bool:
        return step in self._steps and self._steps[step].batch is not None

    def keep(
        self, step: int, batch: Any, before: bytes, after: bytes, oldest: int, state: bytes = b""
    ) -> None:
        """Keep a step's batch, drop those before step `oldest`. `state`: see loading.state_of."""
        kept, self._fresh, self.newest = self._keeper.keep(batch), step, step
        place = plain.encode((state, before)) if state or before != after else b""
        for old in list(self._steps):
            if old < oldest:
                del self._steps[old]
        self._steps[step] = _Fetched(kept, kept.print, (before, after), place)

    def note(self, step: int, print: int, oldest: int) -> None:
        """Note the fingerprint of what a step is computed from; the batch is kept elsewhere."""
        self._steps = {s: found for s, found in self._steps.items() if s >= oldest}
        self._steps[step] = _Fetched(None, print)

    def begin_at(self, step: int, print: int | None, place: bytes) -> None:
        """Begin with what a record for the start of `step` has of the batch before."""
        if print is not None:
            self._steps[step - 1] = _Fetched(None, print, place=place)

    def clear(self) -> None:
        """Drop all batches: a new pass begins."""
        self._steps.clear()
        self._keeper.forget()

    def batch(self, step: int) -> Any:
        """Raises RuntimeError if it has been changed and was not copied."""
        fresh, self._fresh = self._fresh == step, -1
        kept = self._steps[step].batch
        assert kept is not None
        return kept.value if fresh else kept.again(f"the batch of step {step}")

    def pop(self, step: int) -> Any:
        kept = self._steps.pop(step).batch
        assert kept is not None
        return kept.again(f"the batch of step {step}")

    def fetched(self, step: int) -> tuple[bytes, bytes]:
        return self._steps[step].states

    def known(self, step: int) -> tuple[int | None, int | None, bytes]:
        """The fingerprints of the batches of `step` and of the step before, and the loader's place
        before the latter."""
        here, before = self._steps.get(step), self._steps.get(step - 1)
        return (
            here.print if here is not None else None,
            before.print if before is not None else None,
            before.place if before is not None else b"",
        )

    def fingerprint(self, step: int) -> int | None:
        return self._steps[step].print if step in self._steps else None
