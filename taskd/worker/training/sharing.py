"""Hands out the shares of a step: `job.shares`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from taskd.worker.repair.session import RepairSession
from taskd.worker.training.attempts import Attempts


class Sharing:
    """The shares of a rank's attempts."""

    def __init__(self, session: RepairSession, attempts: Attempts) -> None:
        self._session, self._attempts = session, attempts

    def shares(self, step: Any, start: int) -> Iterator[int]:
        """See `Job.shares`. `start`: the number of the job's first step."""
        attempts, standing = self._attempts, self._session.standing
        if not attempts.open:
            raise RuntimeError(
                f"job.shares({step!r}) was called outside an attempt: call it inside `with attempt"
                " as step:`, or in the function given to job.call()"
            )
        if step != attempts.step + start:
            raise ValueError(
                f"job.shares({step!r}): the present step is {attempts.step + start}: give that one"
            )
        attempts.shared = True
        if not standing.mine:
            grad = self._a_gradient()
            yield standing.computes()
            if grad is not None and self._a_gradient() is not grad:
                attempts.inelastic.note(
                    "gradients are cleared inside the loop over job.shares(step), so those of the"
                    " shares before would be lost: clear them before the loop"
                )
            return
        standing.again()
        try:
            for index in range(standing.count):
                standing.enter(index)
                yield standing.computes()
                standing.leave()
        finally:
            standing.stop()

    def _a_gradient(self) -> torch.Tensor | None:
        """One that stays the same tensor as long as nobody clears it."""
        state = self._session.state
        if any(ddp.gradient_as_bucket_view for ddp in state.ddps):
            return None
        return next((p.grad for p in state.parameters() if p.grad is not None), None)
