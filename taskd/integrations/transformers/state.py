"""What a Trainer of transformers keeps beside model, optimizer, scheduler and accelerator."""

from __future__ import annotations

from typing import Any

import transformers
from transformers import Trainer, TrainerCallback

from taskd.integrations.attributes import Attributes
from taskd.worker.state import plain

_SHOWING = ("transformers.integrations", "transformers.utils.notebook")  # modules of callbacks


class Kept:
    """Records and restores it. It changes in calls alone, so `state_version` counts these."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer, self._calls = trainer, 0
        data = ("train_dataset", "eval_dataset", "data_collator", "args")
        self._owners = {
            "trainer": Attributes(trainer, data),
            "state": Attributes(trainer.state, ("log_history",)),
            "control": Attributes(trainer.control),
        }
        for index, callback in enumerate(trainer.callback_handler.callbacks):
            if not shows(callback):
                self._owners[f"callback {index}"] = Attributes(callback)
        self._history: tuple[int, bytes] = (-1, b"")  # its length, and the history as bytes
        # of _run_epoch: which epoch, whether it has begun, whether its data have ended, and its
        # local variables
        self.epoch, self.begun, self.ended = 0, False, False
        self.step, self.update = -1, 0
        self.grad_norm: Any = None
        self.learning_rate: Any = None

    @property
    def state_version(self) -> int:
        return self._calls

    def changes(self) -> None:
        self._calls += 1

    def state_dict(self) -> dict[str, Any]:
        history = self._trainer.state.log_history
        if self._history[0] != len(history):  # lines are only added
            self._history = len(history), plain.encode(history)
        own = {k: v for k, v in vars(self).items() if k[0] != "_"}
        found = {name: owner.state_dict() for name, owner in self._owners.items()}
        return {**found, "epoch": own, "log_history": self._history[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, owner in self._owners.items():
            owner.load_state_dict(state[name])
        vars(self).update(state["epoch"])
        self._trainer.state.log_history[:] = plain.decode(state["log_history"])
        self._history = -1, b""


def shows(callback: TrainerCallback) -> bool:
    """Whether it only shows or reports what the trainer does: a script's own says so itself."""
    if getattr(callback, "after_commit", False):
        return True
    kinds = (transformers.ProgressCallback, transformers.PrinterCallback)
    return isinstance(callback, kinds) or type(callback).__module__.startswith(_SHOWING)
