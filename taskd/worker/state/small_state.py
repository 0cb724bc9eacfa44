"""Values that change between steps, kept whole per rank: param_groups, what optimizers have besides
tensors, objects with a state_dict()."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.cython_api import attempt, frozen
from taskd.cython_api.part import Looker, Stateful, Unasked, flags
from taskd.worker.state import module_state, plain
from taskd.worker.state.deepspeed import Engines
from taskd.worker.state.given import Given, NotProtectable, UnsupportedState, parameters_of
from taskd.worker.state.part import Content, Part, Values
from taskd.worker.state.stored_attributes import into

OBJECT = "object "  # in a part's name, before that of the object
FLAG = "require_forward_param_sync"  # of DDP


class Groups(Unasked, Values):
    """The optimizers' param_groups, without the parameters."""

    name = "param_groups"

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        super().__init__()
        self._optimizers = optimizers

    def renew(self, step: int, whole: bool) -> Content:
        known = frozen.Groups(self._optimizers.values())
        content = super().renew(step, whole)
        self.frozen = known
        return content

    def value(self) -> Any:
        return {
            n: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
            for n, o in self._optimizers.items()
        }

    def refuse(self, value: Any) -> None:
        _refuse(value, "param_groups")

    def put(self, content: Content) -> None:
        for name, saved in plain.decode(content.data).items():
            for group, values in zip(self._optimizers[name].param_groups, saved, strict=True):
                for gone in set(group) - set(values) - {"params"}:
                    del group[gone]
                for key, value in values.items():
                    _put_value(group, key, value)


def is_value(value: Any) -> bool:
    return not isinstance(value, torch.Tensor)


def is_parameter(key: Any) -> bool:
    return isinstance(key, torch.Tensor)


class ZeroNumbers(Values):
    """What DeepSpeed's ZeRO optimizers keep besides tensors: loss scales and flags."""

    name = "(ZeRO)"

    def __init__(self, engines: Engines) -> None:
        super().__init__()
        self._engines = engines

    def value(self) -> Any:
        if self._engines.waits():
            raise NotProtectable(
                "DeepSpeed's ZeRO keeps the gradients of micro batches from one step of the loop to"
                " the next: take all micro batches of an update in one step"
            )
        return self._engines.numbers()

    def put(self, content: Content) -> None:
        self._engines.put(plain.decode(content.data))


class OptimizerValues(Values):
    """What optimizers have for each parameter besides tensors (LBFGS's counters)."""

    name = "optimizer values"

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        super().__init__()
        self._optimizers = optimizers
        self._where: dict[str, list[int]] = {}  # optimizer -> indices of such parameters

    def present(self) -> bool:
        where = {
            name: [
                i
                for i, p in enumerate(parameters_of(o))
                if any(map(is_value, (o.state.get(p) or {}).values()))
            ]
            for name, o in self._optimizers.items()
        }
        self._where = {name: indices for name, indices in where.items() if indices}
        return bool(self._where)

    def value(self) -> Any:
        found: dict[str, dict[int, Any]] = {}
        for name, indices in self._where.items():
            optimizer = self._optimizers[name]
            parameters = parameters_of(optimizer)
            # not of the others: asking for it would make it
            found[name] = {
                i: {k: v for k, v in optimizer.state[parameters[i]].items() if is_value(v)}
                for i in indices
            }
        return found

    def refuse(self, value: Any) -> None:
        _refuse(value, "state")

    def put(self, content: Content) -> None:
        for name, of_parameters in plain.decode(content.data).items():
            optimizer = self._optimizers[name]
            parameters = parameters_of(optimizer)
            for index, values in of_parameters.items():
                state = optimizer.state[parameters[index]]
                for key in [k for k, v in state.items() if k not in values and is_value(v)]:
                    del state[key]
                state.update(values)


class OptimizerOwn(Values):
    """What optimizers keep in their state for no parameter: a global norm, a count."""

    name = "optimizers' own"

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        super().__init__()
        self._optimizers = optimizers

    def present(self) -> bool:
        return any(
            not is_parameter(key)
            for optimizer in self._optimizers.values()
            for key in optimizer.state
        )

    def value(self) -> Any:
        return {
            name: {k: v for k, v in optimizer.state.items() if not is_parameter(k)}
            for name, optimizer in self._optimizers.items()
        }

    def refuse(self, value: Any) -> None:
        _refuse(value, "state")

    def put(self, content: Content) -> None:
        for name, values in plain.decode(content.data).items():
            state = self._optimizers[name].state
            for key in [k for k in state if k not in values and not is_parameter(k)]:
                del state[key]
            for key, value in values.items():
                state[key] = into(state.get(key), value)


class Modes(Looker, Part):
    """Training modes, and which parameters are trained."""

    name = "modes"

    def __init__(self, given: Given) -> None:
        self._given = given
        self.look = attempt.Modes(given.all_modules, given.ddps).take

    def renew(self, step: int, whole: bool) -> Content:
        self.seen = self.look()
        return Content(plain.encode(self.seen))

    def put(self, content: Content) -> None:
        given = self._given
        module_state.put_modes([*given.all_modules, *given.ddps], *plain.decode(content.data))


class Synced(Looker, Part):
    """Whether each DDP's next forward will broadcast the buffers: not after one under no_sync() or
    no_grad()."""

    name, label = "synced", "what DDP broadcasts next"
    shared = False

    def __init__(self, ddps: list[DistributedDataParallel]) -> None:
        self._ddps, self.look = ddps, partial(flags, ddps, FLAG)

    def present(self) -> bool:
        return bool(self._ddps)

    def renew(self, step: int, whole: bool) -> Content:
        self.seen = self.look()
        return Content(self.seen)

    def put(self, content: Content) -> None:
        for ddp, flag in zip(self._ddps, content.data, strict=True):
            setattr(ddp, FLAG, bool(flag))

    def holds(self, content: Content) -> bool:
        now: Content = self.take(0)
        return now.data == content.data


class Object(Stateful, Values):
    """An object with a state_dict()."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self.name, self.label, self.holder = f"{OBJECT}{name}", name, value
        # a scaler learns from averaged gradients
        self.shared = not isinstance(value, torch.amp.GradScaler)

    def refuse(self, value: Any) -> None:
        self.version = None
        say_unrecordable(self.label, "state_dict()", value)

    def put(self, content: Content) -> None:
        self.version, self.frozen, value = None, None, plain.decode(content.data)
        self.holder.load_state_dict(value)
        if isinstance(self.holder, torch.amp.GradScaler) and value:
            # not in its state_dict: what it did to each optimizer since the last update(), in the
            # cut attempt
            self.holder._per_optimizer_states.clear()


def _refuse(values: dict[str, Any], kind: str) -> None:
    for name, value in values.items():
        say_unrecordable(name, kind, value)


def say_unrecordable(name: str, kind: str, value: Any) -> None:
    """Raise UnsupportedState if `value`, the `kind` of the object protected as `name`, cannot be
    recorded."""
    try:
        plain.encode(value)
    except plain.Unrecordable as error:
        raise UnsupportedState(
            f"protect({name}=...): its {kind} has {error}, which cannot be recorded; allowed"
            " are numbers, text, tensors, arrays, and lists, tuples, sets and dicts of these:"
            " give it a state_dict() of such values, or leave it out"
        ) from None


def _put_value(group: dict[str, Any], key: str, value: Any) -> None:
    """Set `group[key]`; a tensor (a learning rate captured by a graph) is changed in place."""
    present = group.get(key)
    if (
        isinstance(present, torch.Tensor)
        and isinstance(value, torch.Tensor)
        and present.shape == value.shape
    ):
        present.copy_(value)
    else:
        group[key] = value
