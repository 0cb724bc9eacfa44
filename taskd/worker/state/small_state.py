"""Values that change between steps, kept whole per rank: param_groups, what optimizers have besides
tensors, objects with a state_dict()."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.cython_api import attempt, frozen
from taskd.worker.state import module_state, plain
from taskd.worker.state.given import Given, UnsupportedState, parameters_of
from taskd.worker.state.part import NOTHING, Content, Part, Values

OBJECT = "object "  # in a part's name, before that of the object


class Groups(Part):
    """The optimizers' param_groups, without the parameters."""

    name = "param_groups"

    def __init__(self, optimizers: dict[str, torch.optim.Optimizer]) -> None:
        self._optimizers = optimizers
        self._known: frozen.Groups | None = None
        self._content = NOTHING

    def take(self, step: int, whole: bool = True) -> Content:
        if self._known is not None and self._known.same():
            return self._content
        known = frozen.Groups(self._optimizers.values())
        groups = {
            n: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
            for n, o in self._optimizers.items()
        }
        data = _encoded(groups, "param_groups")
        if self._known is None or data != self._content.data:
            self._content = Content(data)
        self._known = known
        return self._content

    def put(self, content: Content) -> None:
        for name, saved in plain.decode(content.data).items():
            for group, values in zip(self._optimizers[name].param_groups, saved, strict=True):
                for gone in set(group) - set(values) - {"params"}:
                    del group[gone]
                for key, value in values.items():
                    _put_value(group, key, value)


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
                if any(not isinstance(v, torch.Tensor) for v in (o.state.get(p) or {}).values())
            ]
            for name, o in self._optimizers.items()
        }
        self._where = {name: indices for name, indices in where.items() if indices}
        return bool(self._where)

    def take(self, step: int, whole: bool = True) -> Content:
        found: dict[str, dict[int, Any]] = {}
        for name, indices in self._where.items():
            optimizer = self._optimizers[name]
            states = [optimizer.state[p] for p in parameters_of(optimizer)]
            found[name] = {
                i: {k: v for k, v in states[i].items() if not isinstance(v, torch.Tensor)}
                for i in indices
            }
        try:
            return self.encoded(found)
        except plain.Unrecordable:
            _encoded(found, "state")
            raise

    def put(self, content: Content) -> None:
        for name, of_parameters in plain.decode(content.data).items():
            optimizer = self._optimizers[name]
            parameters = parameters_of(optimizer)
            for index, values in of_parameters.items():
                optimizer.state[parameters[index]].update(values)


class Modes(Part):
    """Training modes, and which parameters are trained."""

    name = "modes"

    def __init__(self, given: Given) -> None:
        self._given = given
        self._modes = attempt.Modes(given.all_modules, given.ddps)
        self._known: tuple[bytes, bytes] | None = None
        self._content = NOTHING

    def take(self, step: int, whole: bool = True) -> Content:
        if (found := self._modes.take()) is not self._known:
            self._known, self._content = found, Content(plain.encode(found))
        return self._content

    def put(self, content: Content) -> None:
        given = self._given
        module_state.put_modes([*given.all_modules, *given.ddps], *plain.decode(content.data))


class Synced(Part):
    """Whether each DDP's next forward will broadcast the buffers: not after one under no_sync() or
    no_grad()."""

    name, label = "synced", "what DDP broadcasts next"
    shared = False

    def __init__(self, ddps: list[DistributedDataParallel]) -> None:
        self._ddps, self._content = ddps, NOTHING

    def present(self) -> bool:
        return bool(self._ddps)

    def take(self, step: int, whole: bool = True) -> Content:
        flags = bytes([bool(ddp.require_forward_param_sync) for ddp in self._ddps])
        if flags != self._content.data:
            self._content = Content(flags)
        return self._content

    def put(self, content: Content) -> None:
        for ddp, flag in zip(self._ddps, content.data, strict=True):
            ddp.require_forward_param_sync = bool(flag)

    def holds(self, content: Content) -> bool:
        return self.take(0).data == content.data


class Object(Values):
    """An object with a state_dict(). One that has a `state_version` is asked again if that has
    changed."""

    def __init__(self, name: str, value: Any) -> None:
        super().__init__()
        self.name, self.label, self._value = f"{OBJECT}{name}", name, value
        self._version: Any = None
        # a scaler learns from averaged gradients
        self.shared = not isinstance(value, torch.amp.GradScaler)

    def take(self, step: int, whole: bool = True) -> Content:
        version = getattr(self._value, "state_version", None)
        if version is not None and version == self._version:
            return self._content
        state = self._value.state_dict()
        try:
            content = self.encoded(state)
        except plain.Unrecordable:
            _encoded({self.label: state}, "state_dict()")
            raise
        self._version = version
        return content

    def put(self, content: Content) -> None:
        self._version, value = None, plain.decode(content.data)
        self._value.load_state_dict(value)
        if isinstance(self._value, torch.amp.GradScaler) and value:
            # not in its state_dict: what it did to each optimizer since the last update(), in the
            # cut attempt
            self._value._per_optimizer_states.clear()


def _encoded(values: dict[str, Any], kind: str) -> bytes:
    """`values` by the name of the protected object. Raises UnsupportedState, which names it and the
    value that cannot be recorded; `kind`: what of it that is."""
    try:
        return plain.encode(values)
    except plain.Unrecordable:
        for name, value in values.items():
            say_unrecordable(name, kind, value)
        raise


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
