"""Decides whether a result that is not finite is the machine's fault, the data's or the model's."""

from __future__ import annotations

import logging

import torch

from taskd.worker.repair.session import RepairSession
from taskd.worker.state import replicas
from taskd.worker.training.attempt import Interrupted
from taskd.worker.training.suspicion import Suspicion

log = logging.getLogger("taskd.worker")


class NotFinite(Interrupted):
    """Raised when `check` finds a result that is not finite, which ends the attempt."""


def is_finite(result: torch.Tensor | float) -> bool:
    return bool(torch.isfinite(torch.as_tensor(result)).all())


class FiniteCheck:
    """Has a step repeated once with the replicas' state; if a result is not finite again, the
    machine is not the cause, and all ranks get the same answer: that step's batch is bad. Once the
    results of all of them are not finite, the model is, and no step is repeated for that."""

    def __init__(self, session: RepairSession, suspicion: Suspicion) -> None:
        self._session, self._suspicion = session, suspicion
        self._doubted = -1  # the last step whose result was not finite
        self._diverged = -1  # since the repair of this interruption all ranks' results are such

    def doubts(self, step: int) -> bool:
        return self._doubted == step

    def check(self, result: torch.Tensor | float, step: int) -> bool:
        """Whether the results of all ranks in the attempt at `step` are finite, as far as this rank
        has to know: where a rank's is not, for the first time, the attempt ends. Raises NotFinite,
        and what collectives raise."""
        finite, again = is_finite(result), step == self._session.restorer.doubted
        if self._session.stand_ins:  # ranks call this as often as they have shares
            again = step == self._doubted
            if again and not finite:
                self._say(step)
                return False
        elif again or self._diverged == self._session.built_at:
            present = self._session.communicators.present
            if not replicas.most(int(not finite), present):
                self._diverged = -1
                return True
            all_bad = not replicas.most(int(finite), present)
            if again and not finite:
                self._say(step)
            self._diverged = self._session.built_at if all_bad else -1
            if again or all_bad:
                return False
        if finite:
            return True
        self._doubted = step
        self._session.entries.mark(step)  # for what a restore must not compare
        self._suspicion.doubt(
            step, "the result is not finite; repeated once with the replicas' state"
        )
        raise NotFinite

    def _say(self, step: int) -> None:
        log.error(
            "rank %d: the result of step %d is not finite again with the replicas' state: the"
            " machine is not the cause",
            self._session.rank,
            step,
        )
