"""Results that are not finite: the machine's doing, or the model's?"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from taskd.worker.attempt import Interrupted
from taskd.worker.suspicion import Suspicion

if TYPE_CHECKING:
    from taskd.worker.session import RepairSession

log = logging.getLogger("taskd.worker")


class NotFinite(Interrupted):
    """`check` found a result that is not finite: the attempt ends here."""


def is_finite(result: torch.Tensor | float) -> bool:
    return bool(torch.isfinite(torch.as_tensor(result)).all())


class FiniteCheck:
    """A step is repeated once with the replicas' state; where its result is not finite again, it
    was not the machine."""

    def __init__(self, session: RepairSession, suspicion: Suspicion) -> None:
        self._session, self._suspicion = session, suspicion
        self._doubted = -1  # the last step whose result was not finite
        self._diverged = False  # results are not finite, and not by the machine's doing

    def doubts(self, step: int) -> bool:
        return self._doubted == step

    def look(self, result: torch.Tensor | float, step: int) -> bool:
        """Whether `result` of the attempt at `step` is finite. Raises NotFinite where the attempt
        ends for that."""
        session = self._session
        if is_finite(result):
            self._diverged = False
            return True
        if not self._diverged and step in (self._doubted, session.entries.marked()):
            self._diverged = True
            text = (
                "rank %d: the result of step %d is not finite again, with the replicas' state: it"
                " is not the machine's doing"
            )
            log.error(text, session.rank, step)
        if self._diverged:
            return False
        self._doubted = step
        session.entries.mark(step)  # a replacement must not ask for the same once more
        self._suspicion.doubt(
            step, "the result is not finite; repeated once with the replicas' state"
        )
        raise NotFinite
