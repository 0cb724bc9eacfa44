"""What an Accelerator of Hugging Face's Accelerate holds: models, optimizers, schedulers and
objects registered for checkpoints, a scaler, and counters.

This is the only file that uses names of Accelerate that are not public.
"""

from __future__ import annotations

import importlib.metadata
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from taskd.worker.state import loading
from taskd.worker.state.random_state import RandomState

_NAMES = (  # as of 1.15
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
    if missing := [name for name in _NAMES if not hasattr(accelerator, name)]:
        version = importlib.metadata.version("accelerate")
        return (
            f"the Accelerator of accelerate {version} has no {', '.join(missing)}: give protect()"
            " the models, optimizers and schedulers instead"
        )
    if not hasattr(accelerator.gradient_state, "dataloader_references"):
        return "Accelerate's GradientState has no dataloader_references"
    kinds = {type(loader).__name__ for loader in accelerator._dataloaders}
    if "DataLoaderDispatcher" in kinds and accelerator.num_processes > 1:
        return (
            "rank 0 reads the data of all ranks (DataLoaderDispatcher), which a replacement of"
            " another rank cannot read again: set dispatch_batches=False in"
            " DataLoaderConfiguration, or in accelerator_config of TrainingArguments"
        )
    types = {str(getattr(r, "value", r)) for d in accelerator._dataloaders for r in _types(d)}
    if types - {"generator"}:
        return (
            f"loaders synchronize {', '.join(sorted(types))} between ranks as a pass begins:"
            ' leave rng_types at its default, ["generator"]'
        )
    return _REFUSED.get(accelerator.distributed_type.name, "")


def _types(loader: Any) -> list[Any]:
    return getattr(loader, "rng_types", None) or []


def synchronize(generators: Iterable[Any], alone: bool) -> None:
    """Give the loaders' generators rank 0's states, now and not as each pass begins: that would be
    a collective in the middle of a step, which ranks that are given a batch again leave out. They
    stay equal. `alone`: this is a replacement, whose states are restored."""
    for loaders in generators:
        for loader in loaders.known if isinstance(loaders, Loaders) else ():
            if _types(loader):
                if not alone:
                    from accelerate.utils import synchronize_rng_states

                    synchronize_rng_states(loader.rng_types, loader.synchronized_generator)
                loader.rng_types = None


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
        self.known = list(accelerator._dataloaders)
        self._other: Any = lambda: None  # the last one in use besides, such as one that skips

    def get_state(self, legacy: bool = False) -> list[Any]:
        found = []
        for loader in self._state.dataloader_references:
            index = self._index(loader)
            if loader is not None and index < 0:
                self._other = weakref.ref(loader)
            found.append(None if loader is None else index)
        return [found, [_marks(loader) for loader in (*self.known, self._other())]]

    def set_state(self, state: list[Any]) -> None:
        self.get_state()  # notes which one is in use besides
        references, marks = state
        known = [*self.known, self._other()]
        found = [None if index is None else known[index] for index in references]
        # a replacement that has not begun the other one yet will enter it as it does
        unknown = -1 in references and known[-1] is None
        if not unknown and found != self._state.dataloader_references:
            self._state.dataloader_references = found
        for loader, (end, remainder, iteration) in zip(known, marks, strict=True):
            known_then = iteration is not None
            if loader is not None and known_then and _marks(loader) != [end, remainder, iteration]:
                loader.end_of_dataloader, loader.remainder = end, remainder
                loader.iteration = iteration

    def _index(self, loader: Any) -> int:
        """-1: it was not there when the accelerator was given to protect()."""
        return next((i for i, known in enumerate(self.known) if known is loader), -1)


def skips(loader: Any) -> bool:
    """Whether skip_first_batches() has made it."""
    sampler = type(getattr(loader, "batch_sampler", None)).__name__
    return sampler == "SkipBatchSampler" or bool(getattr(loader, "skip_batches", 0))


class Pass:
    """One pass over a prepared loader, which a replacement can begin in the middle.

    The loader reads one batch ahead, so random numbers that batch n draws as it is made follow
    those that were drawn before batch n - 2 was used, not those before batch n - 1 was.
    """

    def __init__(self, loader: Any, random: RandomState | None, over: Callable[[], bool]) -> None:
        """`random`: of a protected rank. `over`: whether to end the pass before its loader does."""
        self.loader, self._random, self._over = loader, random, over
        self._count, self._origin, self._earlier = 0, b"", b""
        self._moved: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Before a batch is drawn. Raises TypeError where the loader is read from its begin."""
        loader = self.loader
        if type(loader).__name__ != "DataLoaderShard" or loader.skip_batches or not self._count:
            raise TypeError(f"this {type(loader).__name__} is not moved")
        return {"count": self._count, "origin": self._origin, "earlier": self._earlier}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._moved = state

    def __iter__(self) -> Iterator[Any]:
        random, moved = self._random, self._moved
        self._moved, self._count, now = None, 0, b""
        if random is not None:
            self._origin = random.snapshot()
            if moved is not None:
                now, self._origin, self._count = self._origin, moved["origin"], moved["count"]
                self._move(random, moved["earlier"])
        iterator = iter(self.loader)
        while True:
            if random is not None:  # after _move they are those of the pass's begin
                self._earlier, now = now or random.snapshot(), b""
            try:
                batch = next(iterator)
            except StopIteration:
                return
            self._count += 1
            yield batch
            if self._over():
                return

    def _move(self, random: RandomState, earlier: bytes) -> None:
        """Have the loader begin at batch number `_count`."""
        loader = self.loader
        base, moments = loader.base_dataloader, [earlier, random.snapshot()]
        random.restore(self._origin)

        class Moved:
            def __getattr__(_, name: str) -> Any:
                return getattr(base, name)

            def __iter__(_) -> Iterator[Any]:
                loader.base_dataloader = base
                inner = loading.begin(base, self._count)
                while True:
                    if moments and not loading.has_workers(base):
                        random.restore(moments.pop(0))
                    try:
                        yield next(inner)
                    except StopIteration:
                        return

        loader.base_dataloader = Moved()


def _marks(loader: Any) -> list[Any]:
    return [getattr(loader, name, None) for name in ("end_of_dataloader", "remainder", "iteration")]
