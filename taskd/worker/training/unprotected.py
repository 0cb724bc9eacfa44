"""The loop of a rank that is not protected, or no longer: attempts are handed out, nothing is
recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from taskd.worker.training.attempt import Attempt, Ending
from taskd.worker.training.calls import run


class Unprotected:
    """`step`: the next one, counted from 0; `first`: the number of the first one, None: not fixed
    yet; `announced`: steps before this one had been committed when protection ended."""

    def __init__(self) -> None:
        self.step = self.announced = 0
        self.first: int | None = None
        self._after: list[Callable[[], Any]] | None = None  # in a call

    def begin_at(self, step: int, begun: bool) -> None:
        """Give the first step its number; `begun`: it is fixed. Raises RuntimeError."""
        if self.first is None and not begun:
            self.first = step
        elif step != (self.first or 0):
            raise RuntimeError(
                f"begin_at({step}): this job's first step has the number {self.first or 0}. Call it"
                " once, before the first step; a second loop continues the count"
            )

    def attempts(self, batches: Iterator[Any] | None, total: int | None) -> Iterator[Attempt]:
        """Over `batches`, or up to step `total`."""
        first = self.first or 0
        while total is None or self.step + first < total:
            value: Any = self.step + first
            if batches is not None:
                try:
                    value = (value, next(batches))
                except StopIteration:
                    return
            yield Attempt(self.step, value, self._ended)

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """What `run` returns."""
        after = self._after = []
        result = run(function, args, kwargs)
        self.step, self._after = self.step + 1, None
        for function_after in after:
            function_after()
        return result

    def on_commit(self, hook: Callable[[], Any]) -> None:
        """Call `hook` behind the present call. Raises RuntimeError if there is none."""
        if self._after is None:
            raise RuntimeError("on_commit() is for functions that job.call() runs")
        self._after.append(hook)

    def _ended(self, error: BaseException | None) -> Ending:
        if error is not None:
            return Ending.RAISED
        self.step += 1
        return Ending.COMMITTED if self.step > self.announced else Ending.AGAIN
