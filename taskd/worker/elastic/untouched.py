"""Notices parameters that change while a share is computed.

A momentum encoder that follows in the forward, or a codebook, would be changed once for each share
and not once a step. Version counters tell; `.data` has none of its own, so in the first attempt
after ranks have been taken up the contents are compared, too: what a script does in a share it does
in each step.
"""

from __future__ import annotations

from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.memory import checksum
from taskd.worker.state.training_state import TrainingState


class Untouched:
    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._versions, self._contents = b"", ""
        self._thorough = False

    def taken_up(self) -> None:
        """Ranks have been taken up: compare contents in the next attempt."""
        self._thorough = True

    def begin(self) -> None:
        """An attempt begins."""
        self._contents = checksum(self._state.replicated) if self._thorough else ""
        self._thorough = False

    def again(self) -> None:
        """A loop over the shares begins: what was changed before is the script's to change."""
        if self._contents:
            self._contents = checksum(self._state.replicated)

    def share(self) -> None:
        """A share begins."""
        self._versions = self._state.versions()

    def check(self) -> None:
        """The share ends. Raises WouldDiverge."""
        state = self._state
        if state.versions() != self._versions or (
            self._contents and checksum(state.replicated) != self._contents
        ):
            raise WouldDiverge(
                "elastic-training: parameters or optimizer state change while the share of one rank"
                " is computed (a momentum encoder in the forward?), once for each share and not"
                " once a step: change them before or after the loop over job.shares(step)"
            )
