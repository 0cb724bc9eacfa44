"""What an Accelerator of Hugging Face's Accelerate holds: models, optimizers, schedulers and
objects registered for checkpoints, a scaler, and counters.

This is the only file that uses names of Accelerate that are not public.
"""

from __future__ import annotations

import importlib.metadata
import weakref
from typing import Any

import torch

VERSIONS = ("1.15.",)  # that were tested
_NAMES = (
    *("_models", "_optimizers", "_schedulers", "_dataloaders", "_custom_objects"),
    *("scaler", "step", "flag_tensor", "gradient_state", "distributed_type"),
)
_REFUSED = {
    "DEEPSPEED": "DeepSpeed has engines of its own: use DDP or fully_shard (FSDP2)",
    "MEGATRON_LM": "Megatron-LM has engines of its own: use DDP or fully_shard (FSDP2)",
    "XLA": "XLA's devices are unknown to taskd",
}


def is_accelerator(value: Any) -> bool:
    kinds = ((kind.__module__, kind.__name__) for kind in type(value).__mro__)
    return ("accelerate.accelerator", "Accelerator") in kinds


def refusal(accelerator: Any) -> str:
    """Why this accelerator's state cannot be restored, or ""."""
    version = importlib.metadata.version("accelerate")
    if not version.startswith(VERSIONS):
        return (
            f"accelerate {version} was not tested with taskd, {VERSIONS[0]}x was: install that, or"
            " give protect() the models, optimizers and schedulers instead of the Accelerator"
        )
    if missing := [name for name in _NAMES if not hasattr(accelerator, name)]:
        return f"the Accelerator has no {', '.join(missing)}"
    if not hasattr(accelerator.gradient_state, "dataloader_references"):
        return "Accelerate's GradientState has no dataloader_references"
    return _REFUSED.get(accelerator.distributed_type.name, "")


def parts(accelerator: Any) -> dict[str, Any]:
    """What it holds that protect() takes, by name."""
    found = {
        "models": [*accelerator._models],
        "optimizers": [*accelerator._optimizers],
        "schedulers": [*accelerator._schedulers],
        "registered": [*accelerator._custom_objects],
    }
    one_by_one = {f"{n}[{i}]": value for n, held in found.items() for i, value in enumerate(held)}
    if accelerator.scaler is not None:
        one_by_one["scaler"] = accelerator.scaler
    return one_by_one | {"counters": Counters(accelerator), "loaders": Loaders(accelerator)}


class Counters:
    """Decides when gradients are synchronized and which updates are skipped."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def state_dict(self) -> dict[str, Any]:
        accelerator = self._accelerator
        return {
            "step": accelerator.step,
            "flag": None if accelerator.flag_tensor is None else accelerator.flag_tensor.item(),
            "sync": accelerator.gradient_state.sync_gradients,
            "skipped": [getattr(o, "_is_overflow", False) for o in accelerator._optimizers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        accelerator = self._accelerator
        accelerator.step = state["step"]
        if state["flag"] is None:
            accelerator.flag_tensor = None
        elif accelerator.flag_tensor is None or accelerator.flag_tensor.item() != state["flag"]:
            accelerator.flag_tensor = torch.tensor(state["flag"], device=accelerator.device)
        accelerator.gradient_state.sync_gradients = state["sync"]
        for optimizer, skipped in zip(accelerator._optimizers, state["skipped"], strict=True):
            optimizer._is_overflow = skipped


class Loaders:
    """Which loaders are under way and whether they are at their end, as GradientState knows it.

    It changes with each batch that is drawn and must be as it was when a batch is given again, as
    random numbers must: so it is recorded with these and has the methods of a generator.
    """

    def __init__(self, accelerator: Any) -> None:
        self._state = accelerator.gradient_state
        # the same ones in every process of the rank: more are added by each evaluation
        self._known = list(accelerator._dataloaders)
        self._other: Any = lambda: None  # the last one in use besides, such as one that skips

    def get_state(self, legacy: bool = False) -> list[Any]:
        found = []
        for loader in self._state.dataloader_references:
            index = self._index(loader)
            if loader is not None and index < 0:
                self._other = weakref.ref(loader)
            found.append(None if loader is None else index)
        return [found, [_marks(loader) for loader in (*self._known, self._other())]]

    def set_state(self, state: list[Any]) -> None:
        self.get_state()  # notes which one is in use besides
        references, marks = state
        known = [*self._known, self._other()]
        found = [None if index is None else known[index] for index in references]
        if found != self._state.dataloader_references:
            self._state.dataloader_references = found
        for loader, (end, remainder, iteration) in zip(known, marks, strict=True):
            if loader is not None and _marks(loader) != [end, remainder, iteration]:
                loader.end_of_dataloader, loader.remainder = end, remainder
                loader.iteration = iteration

    def _index(self, loader: Any) -> int:
        """-1: it was not there when the accelerator was given to protect()."""
        return next((i for i, known in enumerate(self._known) if known is loader), -1)


def _marks(loader: Any) -> list[Any]:
    return [getattr(loader, name, None) for name in ("end_of_dataloader", "remainder", "iteration")]

