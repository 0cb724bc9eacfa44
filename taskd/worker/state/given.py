"""Sorts the objects given to protect() by kind."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from taskd import settings
from taskd.worker.state import accelerator, deepspeed, places, zero
from taskd.worker.state.adapters import adapt
from taskd.worker.state.wrappers import held, unwrap


class UnsupportedState(RuntimeError):
    """An object given to `taskd.protect` cannot be restored; the text names it and the remedy. It
    is in `taskd.worker.state.given`."""


class WouldDiverge(RuntimeError):
    """Continuing would give other numbers than an undisturbed run: the job ends with the reason."""


class Unwanted(WouldDiverge):
    """A setting has the job end here, as it would at each start."""


class NotProtectable(RuntimeError):
    """The job has a kind of state that this version cannot restore; it trains without
    protection."""


UNSUPPORTED = UnsupportedState, NotProtectable


def unwanted(why: str) -> Unwanted | None:
    """What ends a job that would train unprotected, if a setting asks for that. `why`: it would."""
    if not settings.refuses_unrecordable(os.environ):
        return None
    return Unwanted(f"TASKD_UNRECORDABLE=refuse: this job would not be protected: {why}")


class Refused:
    """Given to protect() by an integration: the job cannot be protected, and why."""

    def __init__(self, why: str) -> None:
        self.why = why


def named(
    unnamed: Sequence[Any], variables: Sequence[Mapping[str, Any]], objects: Mapping[str, Any]
) -> dict[str, Any]:
    """All objects by name. The `unnamed` have that of the first of the `variables` that has them,
    else of their type: a replacement, which runs the same lines, finds the same names."""
    found = dict(objects)
    for value in unnamed:
        names = (name for each in variables for name, held in each.items() if held is value)
        name = first = next(names, type(value).__name__.lower())
        number = 1
        while name in found:
            number += 1
            name = f"{first}_{number}"
        found[name] = value
    return found


def expanded(objects: dict[str, Any]) -> dict[str, Any]:
    """The objects, with what an Accelerator holds in its place, and what an engine of DeepSpeed
    holds beside it; the engine in the place of its model."""
    found: dict[str, Any] = {}
    for name, value in objects.items():
        if (engine := deepspeed.of(value)) is not None:
            found |= {name: engine} | {f"{name}.{p}": v for p, v in deepspeed.parts(engine).items()}
        elif not accelerator.is_accelerator(value):
            found[name] = value
        elif why := accelerator.refusal(value):
            found[name] = Refused(why)
        else:
            found |= {f"{name}.{part}": held for part, held in accelerator.parts(value).items()}
    return found


class Given:
    """The objects by name. `small`: everything else with state_dict() and load_state_dict().
    `ddps`: a list of the modules' wrappers."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.split: set[str] = set()  # names of those whose parameters are this rank's share
        self.small: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self.ddps: list[DistributedDataParallel] = []
        self.engines = deepspeed.Engines()
        for name, value in objects.items():
            self._register(name, value)
        if not self.modules:
            raise UnsupportedState(
                "protect() was given no torch.nn.Module; pass model=... so that there is state to"
                " protect"
            )
        for name, module in self.modules.items():
            for key, tensor in (*module.named_parameters(), *module.named_buffers()):
                if torch.nn.parameter.is_lazy(tensor):
                    raise NotProtectable(
                        f"{name}.{key} is not initialized yet: run one forward before protect()"
                    )
        self.all_modules = [m for root in self.modules.values() for m in root.modules()]

    def _register(self, name: str, value: Any) -> None:
        if isinstance(value, Refused):
            raise NotProtectable(value.why)
        try:
            value = unwrap(value)
        except TypeError as error:
            raise NotProtectable(f"{name}: {error}") from None
        if deepspeed.is_zero(value):
            if any(value.optimizer is known for known in self.optimizers.values()):
                return  # the engine was given too
            self.split.add(name)
            value = value.optimizer
        elif deepspeed.is_engine(value):
            self.engines.add(value)
        if isinstance(value, DistributedDataParallel):
            self.ddps.append(value)
            value = value.module
        if isinstance(value, torch.nn.Module):
            self.modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            if any(value is known for known in self.optimizers.values()):
                return  # in a wrapper that was given too
            self.optimizers[name] = value
            for place, inner in held(value).items():
                self._register(f"{name}.{place}", inner)
            if zero.is_split(value):
                if (why := zero.unsupported(value)) is not None:
                    raise NotProtectable(f"{name}: {why}")
                self.split.add(f"{name}.optim")
                self.optimizers[f"{name}.optim"] = zero.share(value)
        elif isinstance(value, DataLoader):
            pass  # the loop that iterates over it knows its place
        elif places.is_generator(value) or isinstance(value, accelerator.Loaders):
            self.generators[name] = value
        elif isinstance(value, (list, tuple)) and any(_is_stateful(item) for item in value):
            for i, item in enumerate(value):
                self._register(f"{name}[{i}]", item)
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self.small[name] = value
        elif (adapted := adapt(value)) is not None:
            self.small[name] = adapted
        else:
            raise UnsupportedState(
                f"protect({name}=...): a {type(value).__name__} has no state_dict() and"
                " load_state_dict(); give it both, or leave it out"
            )

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Each parameter once: those of the modules, then those that only an optimizer has."""
        seen: set[int] = set()
        for owner in (
            *(m.parameters() for m in self.modules.values()),
            *map(parameters_of, self.optimizers.values()),
        ):
            for parameter in owner:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _is_stateful(value: Any) -> bool:
    """Whether a list that contains `value` is a list of objects to protect, not an object
    itself."""
    if isinstance(value, (list, tuple)):
        return any(_is_stateful(item) for item in value)
    return (
        isinstance(value, DataLoader) or hasattr(value, "state_dict") or places.is_generator(value)
    )
