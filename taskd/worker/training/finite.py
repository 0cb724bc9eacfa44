"""Decides whether a result that is not finite is the machine's fault or the model's."""

from __future__ import annotations

import logging

import torch

from taskd.worker.repair.session import RepairSession
from taskd.worker.training.attempt import Interrupted
from taskd.worker.training.suspicion import Suspicion

log = logging.getLogger("taskd.worker")


class NotFinite(Interrupted):
    """Raised when `check` finds a result that is not finite, which ends the attempt."""


def is_finite(result: torch.Tensor | float) -> bool:
    return bool(torch.isfinite(torch.as_tensor(result)).all())


class FiniteCheck:
    """Has a step repeated once with the replicas' state; if its result is not finite again, the
    machine is not the cause."""

    def __init__(self, session: RepairSession, suspicion: Suspicion) -> None:
        self._session, self._suspicion = session, suspicion
        self._doubted = -1  # the last step whose result was not finite
        self._diverged = False  # results are not finite, and the machine is not the cause

    def doubts(self, step: int) -> bool:
        return self._doubted == step

    def check(self, result: torch.Tensor | float, step: int) -> bool:
        """Whether `result` of the attempt at `step` is finite. Raises NotFinite to end the
        attempt."""
        session = self._session
        if is_finite(result):
            self._diverged = False
            return True
        if not self._diverged and step in (self._doubted, session.entries.marked()):
            self._diverged = True
            text = (
                "rank %d: the result of step %d is not finite again with the replicas' state: the"
                " machine is not the cause"
            )
            log.error(text, session.rank, step)
        if self._diverged:
            return False
        self._doubted = step
        session.entries.mark(step)  # a replacement must not have it repeated again
        self._suspicion.doubt(
            step, "the result is not finite; repeated once with the replicas' state"
        )
        raise NotFinite
