"""The small state of the present share, as it is in this rank's memory."""

from __future__ import annotations

from typing import Protocol

from taskd.worker.discovery.loop_variables import NAME as VARIABLES
from taskd.worker.elastic import private
from taskd.worker.elastic.away import Small
from taskd.worker.state import sharded
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.memory import gather, scatter
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import TrainingState


class Carrier(Protocol):
    state: TrainingState
    random: RandomState


class InMemory:
    """Takes it, and puts that of another share in its place."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier
        self._buffers = b""  # what was gathered last
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
        return Small(self._carrier.random.snapshot(), state.settings(), self.gathered())

    def gathered(self) -> bytes:
        """The buffers."""
        rows = self._carrier.state.buffer_rows
        if rows.hosted:
            self._buffers = rows.gather(self._buffers)
        else:
            self._buffers = gather(self._carrier.state.buffers)
        return self._buffers

    def put(self, wanted: Small, variables: bool, whole: bool = True) -> None:
        """`variables`: those of the script's loop, too. Raises WouldDiverge."""
        state, here = self._carrier.state, self.take(whole)
        if wanted.random != here.random:
            self._carrier.random.put(wanted.random)
        settings = wanted.settings
        if settings != here.settings and not variables:
            settings = private.keeping(VARIABLES, here.settings, settings)
        if settings != here.settings:
            state.exchange_settings(here.settings, settings)
        if wanted.buffers != here.buffers:
            scatter(wanted.buffers, state.buffers)

    def _tensors(self) -> list[tuple[int, int]]:
        found = []
        for module in self._carrier.state.modules.values():
            for tensor in (*module.parameters(), *module.buffers()):
                part = sharded.local(tensor)
                found.append((part.data_ptr(), part.numel()))
        return found
