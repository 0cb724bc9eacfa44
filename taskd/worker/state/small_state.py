"""Small state that changes between steps, kept whole per rank: param_groups, non-tensor optimizer
state, small objects, modules' attributes and modes."""

from __future__ import annotations

from typing import Any

import torch

from taskd.cython_api import attempt, frozen
from taskd.worker.state import module_state, plain
from taskd.worker.state.attributes import Attributes
from taskd.worker.state.given import Given, UnsupportedState, parameters_of


class SmallState:
    def __init__(self, given: Given) -> None:
        self._given = given
        self._attributes = Attributes(given.modules)
        # optimizer -> indices of parameters whose state has more than tensors (LBFGS's counters)
        self._others: dict[str, list[int]] = {}
        self._modes = attempt.Modes(given.all_modules, given.ddps)
        # the last state found, and its bytes; `_alone`: the modes, if there was no state but them
        # and the optimizers' groups
        self._groups = frozen.Groups(given.optimizers.values())
        self._rest, self._taken = frozen.Frozen(self), b""  # equal to nothing
        self._alone: tuple[bytes, bytes] | None = None
        # name -> state_version and state of an object that has one, when it was last asked
        self._asked: dict[str, tuple[Any, Any]] = {}
        # recorded state of objects that this process does not have yet
        self._waiting: dict[str, Any] = {}
        self._left: set[str] = set()  # names, see leave()

    def add(self, name: str, value: Any) -> None:
        """Record a small object of taskd's own too, from now on; `name` has parentheses, which no
        argument of protect() has."""
        self._given.small[name] = value
        if name in self._waiting:
            value.load_state_dict(self._waiting.pop(name))

    def leave(self, value: Any) -> None:
        """Leave `value`, if it is one of the small objects, to the loop that iterates over it: it
        has fetched further ahead than a record shows."""
        small = self._given.small
        for name in [name for name, held in small.items() if held is value]:
            del small[name]
            self._left.add(name)

    def refresh(self) -> None:
        """Look again, after tensors have changed."""
        others = {
            name: [
                i
                for i, p in enumerate(parameters_of(o))
                if any(not isinstance(v, torch.Tensor) for v in (o.state.get(p) or {}).values())
            ]
            for name, o in self._given.optimizers.items()
        }
        self._others = {name: indices for name, indices in others.items() if indices}

    def attributes(self) -> Any:
        """The attributes of modules that have changed."""
        return self._attributes.snapshot()

    def put_attributes(self, values: Any) -> None:
        self._attributes.put(values)

    def snapshot(self) -> bytes:
        """The state as bytes; the same object if nothing has changed. Raises UnsupportedState,
        which names the value, for one that cannot be recorded."""
        given = self._given
        attributes, modes = self._attributes.snapshot(), self._modes.take()
        alone = not (self._others or given.small or attributes)
        if alone and modes is self._alone and self._groups.same():
            return self._taken
        others = {
            name: {i: self._without_tensors(name, i) for i in indices}
            for name, indices in self._others.items()
        }
        small = {n: self._ask(n, v) for n, v in given.small.items()}
        rest = (others, small, attributes, modes)
        if self._groups.same() and self._rest.same(rest):
            return self._taken
        # before encoding, so that a change in between shows the next time
        known = frozen.Groups(given.optimizers.values()), frozen.Frozen(rest)
        groups = {
            n: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
            for n, o in given.optimizers.items()
        }
        try:
            found = plain.encode((groups, *rest))
        except plain.Unrecordable:
            kinds = (
                ("param_groups", groups),
                ("state", others),
                ("state_dict()", small),
                ("get_extra_state()", attributes),
            )
            for kind, values in kinds:
                for name, value in values.items():
                    say_unrecordable(name, kind, value)
            raise
        (self._groups, self._rest), self._alone = known, modes if alone else None
        if found != self._taken:
            self._taken = found
        return self._taken

    def _ask(self, name: str, value: Any) -> Any:
        """The object's state. One that has a state_version is asked again if that has changed."""
        version = getattr(value, "state_version", None)
        if version is None:
            return value.state_dict()
        if name not in self._asked or self._asked[name][0] != version:
            self._asked[name] = version, value.state_dict()
        return self._asked[name][1]

    def _without_tensors(self, name: str, index: int) -> dict[Any, Any]:
        optimizer = self._given.optimizers[name]
        state = optimizer.state[parameters_of(optimizer)[index]]
        return {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)}

    def put(self, data: bytes) -> None:
        groups, others, small, attributes, modes = plain.decode(data)
        self._attributes.put(attributes)
        self._put(groups, others, small, modes)

    def exchange(self, present: bytes, wanted: bytes) -> None:
        """Restore `wanted` where it differs from `present`, the state as it is now: all else may be
        in use, as in the middle of an attempt."""
        here, there = plain.decode(present), plain.decode(wanted)
        groups, others, small = (
            {n: v for n, v in new.items() if plain.encode(v) != plain.encode(old.get(n))}
            for old, new in zip(here[:3], there[:3], strict=True)
        )
        *_, attributes, modes = there
        if plain.encode(attributes) != plain.encode(here[3]):
            self._attributes.put(attributes)
        self._put(groups, others, small, modes if modes != here[4] else None)

    def _put(
        self,
        groups: dict[str, Any],
        others: dict[str, Any],
        small: dict[str, Any],
        modes: tuple[bytes, bytes] | None,
    ) -> None:
        given = self._given
        self._asked.clear()
        if modes is not None:
            module_state.put_modes([*given.all_modules, *given.ddps], *modes)
        for name, saved in groups.items():
            for group, values in zip(given.optimizers[name].param_groups, saved, strict=True):
                for gone in set(group) - set(values) - {"params"}:
                    del group[gone]
                for key, value in values.items():
                    _put_value(group, key, value)
        for name, of_parameters in others.items():
            optimizer = given.optimizers[name]
            for index, values in of_parameters.items():
                optimizer.state[parameters_of(optimizer)[index]].update(values)
        for name, value in small.items():
            if name in self._left:
                continue
            if name[0] == "(" and name not in given.small:
                self._waiting[name] = value
                continue
            given.small[name].load_state_dict(value)
            if isinstance(given.small[name], torch.amp.GradScaler) and value:
                # not in its state_dict: what it did to each optimizer since the last update(), in
                # the cut attempt
                given.small[name]._per_optimizer_states.clear()


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
