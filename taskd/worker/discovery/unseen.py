"""Finds objects that take part in the training but were not given to `protect`.

A forgotten scheduler silently changes the numbers after a repair. So taskd searches what the script
can reach (`reach.py`) for objects that drive or follow the protected ones, and protects them under
the script's names. A replacement cannot find an object that no name reaches: then the job is not
protected, and the log names what to pass to `protect`.
"""

from __future__ import annotations

import gc
import logging
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel

from taskd import raised
from taskd.worker.discovery import holders, reach
from taskd.worker.discovery.reach import Root
from taskd.worker.state import places, plain

log = logging.getLogger("taskd.worker")


@dataclass
class Found:
    """The result of a search. `objects`: to be protected too, by name. `generators`: the script's
    own, by name. `libraries`: objects that may hold protected ones, see holders.py. `obstacle`: why
    the job cannot be protected, "" if it can."""

    objects: dict[str, Any] = field(default_factory=dict)
    generators: dict[str, Any] = field(default_factory=dict)
    libraries: list[Root] = field(default_factory=list)
    obstacle: str = ""


_KINDS = (LRScheduler, Optimizer, GradScaler, AveragedModel)


def find(given: dict[str, Any], everything: bool) -> Found:
    """Search the script that calls protect(). Never raises: a search must not end a job."""
    try:
        return search(given, reach.of_caller(), everything)
    except Exception as error:
        raised.heed(error)
        log.warning(
            "could not look for what belongs to the protected objects and was not given to"
            " protect()",
            exc_info=True,
        )
        return Found()


def search(given: dict[str, Any], roots: list[Root], everything: bool = True) -> Found:
    """Search from `given` (protect()'s arguments) and `roots` (the script's variables).
    `everything`: also look at all other objects, which takes 0.1 s; a replacement skips that, since
    its predecessor did it."""
    found = Found()
    inside: set[int] = set()
    for value in _flat(given.values()):
        inside |= _parts(value)
    reached = reach.find(
        [("", given), *roots], lambda kind: _is_wanted(kind) or holders.may_hold(kind)
    )
    libraries = set(filter(holders.may_hold, {type(value) for _, value in reached}))
    found.libraries = [row for row in reached if type(row[1]) in libraries]
    reachable = [row for row in reached if _is_wanted(type(row[1]))]
    found.generators = {name: value for name, value in reachable if places.is_generator(value)}
    belongs = _Belongs(given.values())
    # in this order: a scheduler may drive an optimizer just found, and what it trains may have an
    # average
    for kinds in ((Optimizer,), (LRScheduler, GradScaler), (AveragedModel,)):
        for name, value in reachable:
            if not isinstance(value, kinds) or id(value) in inside or not belongs.to(value):
                continue
            if why := _not_recordable(value):
                kind = type(value).__name__
                found.obstacle = (
                    f"{name}, a {kind} that was not given to protect(), cannot be recorded: its"
                    f" state has {why}"
                )
                return found
            found.objects[name] = value
            inside |= _parts(value)
            belongs.add(value)
        _owners(belongs, reachable, inside, found)
    for name, value in reachable:
        is_new = isinstance(value, torch.nn.Module) and id(value) not in inside
        if is_new and (average := belongs.average(name, value)) is not None:
            found.objects[average[0]] = average[1]
            inside |= _parts(average[1])
    for name, value in reachable:  # with a state of their own
        if isinstance(value, Optimizer) and "state" in vars(value) and belongs.is_around(value):
            found.objects[name] = value
    if everything:
        found.obstacle = _unreachable(belongs, inside)
    return found


def _is_wanted(kind: type) -> bool:
    return issubclass(kind, (*_KINDS, torch.nn.Module)) or _draws(kind)


def _draws(kind: type) -> bool:
    return issubclass(kind, (torch.Generator, random.Random)) or kind.__module__.startswith(
        "numpy.random"
    )


def _not_recordable(value: Any) -> str:
    if isinstance(value, (Optimizer, torch.nn.Module)):
        return ""  # TrainingState reports what of these cannot be recorded
    try:
        plain.encode(value.state_dict())
    except plain.Unrecordable as error:
        return str(error)
    return ""


class _Belongs:
    """Decides whether an object works on what is protected so far."""

    def __init__(self, given: Iterable[Any]) -> None:
        self.parameters: set[int] = set()
        self.covered: set[int] = set()  # those of them that a module has
        self.optimizers: list[Optimizer] = []
        self.modules: list[torch.nn.Module] = []
        for value in _flat(given):
            self.add(value)

    def add(self, value: Any) -> None:
        if isinstance(value, torch.nn.Module):
            self.modules.append(value)
            self.covered |= {id(p) for p in value.parameters()}
            self.parameters |= self.covered
        elif isinstance(value, Optimizer):
            self.optimizers.append(value)
            self.parameters |= {id(p) for p in _parameters(value)}

    def orphans(self) -> dict[int, tuple[Optimizer, torch.Tensor]]:
        """Parameters that a protected optimizer changes and no protected module has."""
        return {
            id(p): (o, p)
            for o in self.optimizers
            for p in _parameters(o)
            if id(p) not in self.covered
        }

    def to(self, value: Any) -> bool:
        if isinstance(value, Optimizer):
            own = {id(p) for p in _parameters(value)}
            return bool(own & self.parameters) and not self.wraps(value)
        if isinstance(value, LRScheduler):
            driven = getattr(value, "optimizer", None)
            return any(
                driven is o or getattr(o, "optimizer", None) is driven for o in self.optimizers
            )
        if isinstance(value, GradScaler):
            return value.is_enabled()
        if isinstance(value, AveragedModel):
            shapes = [p.shape for p in value.module.parameters()]
            return any(shapes == [p.shape for p in m.parameters()] for m in self._all_modules())
        return False

    def average(self, name: str, holder: torch.nn.Module) -> Root | None:
        """A part of `holder`, or all of it, that has the shape of a protected module: an average of
        another library, or of the script. A module of the same class by itself may be a teacher,
        which no step changes and whose copies would be dear."""
        models = [m.module if isinstance(m, DistributedDataParallel) else m for m in self.modules]
        if any(type(holder) is type(model) for model in models):
            return None
        shapes = [found for model in models if (found := _shapes(model))]
        for child, module in holder.named_children():
            if _shapes(module) in shapes:
                if self._is_apart(holder):
                    return name, holder
                if self._is_apart(module):
                    return f"{name}.{child}", module
        return None

    def _is_apart(self, module: torch.nn.Module) -> bool:
        own = [id(p) for p in module.parameters()]
        return bool(own) and not any(p in self.parameters for p in own)

    def wraps(self, value: Optimizer) -> bool:
        """Whether it is a wrapper around a protected optimizer."""
        held = reach.find([("", {"": value})], lambda kind: issubclass(kind, Optimizer))
        return any(inner is o for _, inner in held for o in self.optimizers if o is not value)

    def is_around(self, value: Optimizer) -> bool:
        """Whether an optimizer that is not protected wraps one that is."""
        return not any(value is o for o in self.optimizers) and self.wraps(value)

    def _all_modules(self) -> Iterable[torch.nn.Module]:
        for module in self.modules:
            yield from module.modules()


def _shapes(module: torch.nn.Module) -> list[Any]:
    """Of its parameters; none if one is not made yet."""
    own = list(module.parameters())
    if any(map(torch.nn.parameter.is_lazy, own)):
        return []
    return [(p.shape, p.dtype) for p in own]


def _owners(belongs: _Belongs, reachable: list[Root], inside: set[int], found: Found) -> None:
    """Protect the modules whose parameters a protected optimizer changes."""
    orphans = belongs.orphans()
    if not orphans:
        return
    modules = [
        (name, value, sum(1 for _ in value.parameters()))
        for name, value in reachable
        if isinstance(value, torch.nn.Module)
        and not isinstance(value, DistributedDataParallel)
        and id(value) not in inside
    ]
    # the largest made of nothing else first, so that what belongs together stays together
    for name, module, _ in sorted(modules, key=lambda row: -row[2]):
        own = {id(p) for p in module.parameters()}
        if own and own <= belongs.parameters and own & orphans.keys():
            found.objects[name] = module
            inside |= _parts(module)
            belongs.add(module)
            orphans = belongs.orphans()


def _parts(value: Any) -> set[int]:
    """The ids of `value` and its parts, not of everything reachable: from a hook or a trainer
    everything is."""
    if isinstance(value, torch.nn.Module):
        return {id(part) for part in value.modules()}
    held = reach.find(
        [("", value)],
        lambda kind: issubclass(kind, _KINDS),
        entered=lambda kind: issubclass(kind, (list, tuple, dict, LRScheduler, GradScaler)),
    )
    return {id(value), *(id(part) for _, part in held)}


def _unreachable(belongs: _Belongs, inside: set[int]) -> str:
    """The text for the first live object that belongs to the protected ones and was neither given
    nor found."""
    known: dict[type, bool] = {}

    def counts(kind: type) -> bool:
        if kind not in known:
            known[kind] = issubclass(kind, _KINDS)
        return known[kind]

    for collected in (False, True):
        left = [
            o for o in gc.get_objects() if counts(type(o)) and id(o) not in inside and belongs.to(o)
        ]
        if not left:
            return ""
        if not collected:
            gc.collect()  # a scheduler that has been replaced may only await collection
        del left[1:]
    (value,) = left
    kind = type(value).__name__
    name = (
        "optimizer"
        if isinstance(value, Optimizer)
        else "scheduler"
        if isinstance(value, LRScheduler)
        else "more"
    )
    return (
        f"a {kind} that works on what is protected was not given to protect(), and the script has"
        f" no variable by which a replacement would find it; give it: protect(..., {name}=...)"
    )


def _flat(values: Iterable[Any]) -> Iterable[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        else:
            yield value


def _parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]
