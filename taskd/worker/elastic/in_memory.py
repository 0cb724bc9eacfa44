"""The small state of the present share, as it is in this rank's memory."""

from __future__ import annotations

from typing import Protocol

from taskd.worker.elastic.away import VARIABLES, Small
from taskd.worker.state import sharded
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.part import TENSORS, Content
from taskd.worker.state.training_state import TrainingState


class Carrier(Protocol):
    state: TrainingState


class InMemory:
    """Takes it, and puts that of another share in its place."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        # the modules' tensors, where others have been added since the attempt began: an optimizer
        # makes its state in the first update, which a later loop over shares comes after
        self._grown: list[tuple[int, int]] | None = None

    def begin(self) -> None:
        """Shares begin."""
        self._grown = self._tensors() if self._carrier.state.changed() else None

    def take(self, whole: bool = True) -> Small:
        """`whole`: a share begins or has ended. Raises WouldDiverge."""
        state = self._carrier.state
        if whole and state.changed() and self._grown != self._tensors():
            raise WouldDiverge(
                "elastic-training: tensors were added to the model or exchanged while the share of"
                " one rank was computed: other ranks' cannot follow. Do it between two steps"
            )
        return {p.name: p.take(0).bytes() for p in state.parts if p.shared}

    def gathered(self) -> bytes:
        """The buffers."""
        found: Content = self._carrier.state.parts["buffers"].take(0)
        return found.bytes()

    def put(self, wanted: Small, whole: bool = True) -> None:
        """Only what differs: all else may be in use, as in the middle of an attempt. The variables
        of the script's loop are of all shares. Raises WouldDiverge."""
        parts, here = self._carrier.state.parts, self.take(whole)
        for part in parts:
            value = wanted.get(part.name)
            if value is None or value == here.get(part.name):
                continue
            if part.name != VARIABLES:
                part.put(Content(memory=value) if part.order == TENSORS else Content(value))

    def _tensors(self) -> list[tuple[int, int]]:
        found = []
        for module in self._carrier.state.modules.values():
            for tensor in (*module.parameters(), *module.buffers()):
                part = sharded.local(tensor)
                found.append((part.data_ptr(), part.numel()))
        return found
