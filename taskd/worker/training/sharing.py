"""Hands out the shares of a step: by `job.shares`, or one attempt each in a loop over
`job.batches`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from taskd.worker.elastic.standing import REMEDY
from taskd.worker.repair.session import RepairSession
from taskd.worker.state.batches import Batches
from taskd.worker.state.given import WouldDiverge
from taskd.worker.training.attempt import Attempt, Ending
from taskd.worker.training.attempts import Attempts

NOT_LEFT = (
    "the attempt was not entered or not left: the loop's body must be `with attempt as step:`"
)
Ended = Callable[[BaseException | None], Ending]


class Sharing:
    """The shares of a rank's attempts."""

    def __init__(self, session: RepairSession, attempts: Attempts, batches: Batches) -> None:
        self._session, self._attempts, self._batches = session, attempts, batches

    def hand_out(self, number: int, ended: Ended) -> Iterator[Attempt]:
        """The attempts at the present step of a loop over batches, whose number is `number` for the
        script: one for each share. Raises RuntimeError if the script does not enter one."""
        attempts, standing = self._attempts, self._session.standing
        step = attempts.step
        for index, away in enumerate(standing.shares()):
            kept = self._batches if away is None else away.batches
            standing.enter(index)
            try:
                yield Attempt(step, (number, kept.batch(step, others=True)), ended)
            except GeneratorExit:
                self._broken(index)
                raise
            if standing.computing:
                raise RuntimeError(NOT_LEFT)
            if not attempts.open:
                return

    def _broken(self, index: int) -> None:
        """The script has left its loop by break or an exception, in or after share `index`."""
        attempts, standing = self._attempts, self._session.standing
        begun = index > 0 or not standing.computing
        standing.abandon()
        if begun and attempts.open:
            attempts.refused(
                WouldDiverge(
                    f"elastic-training: step {attempts.step} was left by break before the shares of"
                    f" all ranks were computed: leave the loop between two steps, or {REMEDY}"
                )
            )

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
        if not standing.mine or attempts.loads:
            grad = self._a_gradient()
            yield standing.computes()
            if not attempts.loads and grad is not None and self._a_gradient() is not grad:
                attempts.inelastic.note(
                    "gradients are cleared inside the loop over job.shares(step), so those of the"
                    " shares before would be lost: clear them before the loop"
                )
            return
        standing.again()
        try:
            for index in range(len(standing.shares())):
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
