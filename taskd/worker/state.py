"""The training state of a rank: what of it is the same on all replicas, what is its own, and how to
put either back.

*Replicated* tensors (parameters, optimizer state) are listed in an order that is the same on every
rank; stripes and copies between ranks work on them as flat bytes. *Private* are module buffers
(batch-norm statistics differ per rank under DDP) and whatever was found to differ when hashes were
compared at the start. Everything else with a state_dict() (scheduler, scaler, loader…) is small and
is kept whole, per rank. Nothing is assumed about optimizers but `state` and `param_groups`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from taskd.cython_api import attempt, frozen
from taskd.worker import loading, module_state, plain
from taskd.worker.adapters import adapt
from taskd.worker.attributes import Attributes
from taskd.worker.wrappers import unwrap

Key = tuple[str, Any, str]  # (owner's name, where in it, which tensor)
LOOSE = "(parameter)"  # instead of a name: a parameter that only its optimizer has


class UnsupportedState(RuntimeError):
    """Something that was given to protect() cannot be carried over; the text says what and what to
    do instead."""


class NotProtectable(RuntimeError):
    """The job has a kind of state that this version cannot bring back; it trains on without
    protection."""


class TrainingState:
    """See the module docstring. `objects`: name -> module, optimizer, or anything with state_dict()
    and load_state_dict()."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.small: dict[str, Any] = {}
        self.generators: dict[str, Any] = {}
        self.ddps: list[DistributedDataParallel] = []
        for name, value in objects.items():
            self._register(name, value)
        if not self.modules:
            raise UnsupportedState(
                "protect() was given no torch.nn.Module; pass model=... so that there is a state to"
                " protect"
            )
        for name, module in self.modules.items():
            for key, tensor in (*module.named_parameters(), *module.named_buffers()):
                if torch.nn.parameter.is_lazy(tensor):
                    raise NotProtectable(
                        f"{name}.{key} is not initialized yet: run one forward before protect()"
                    )
        self._all_modules = [m for root in self.modules.values() for m in root.modules()]
        self._attributes = Attributes(self.modules)
        self.apart: set[Key] = set()  # parameters that differ between ranks
        self._print: Any = None
        self.replicated: list[torch.Tensor] = []
        self.private: list[torch.Tensor] = []
        self._modes = attempt.Modes(self._all_modules, self.ddps)
        # the settings that were found last, and their bytes; `_alone`: the modes, where they and
        # the optimizers' groups were all there was
        self._groups = frozen.Groups(self.optimizers.values())
        self._rest, self._settings = frozen.Frozen(self), b""  # equal to nothing
        self._alone: tuple[bytes, bytes] | None = None
        self.refresh()

    def _register(self, name: str, value: Any) -> None:
        try:
            value = unwrap(value)
        except TypeError as error:
            raise UnsupportedState(f"protect({name}=...): {error}") from None
        if isinstance(value, DistributedDataParallel):
            self.ddps.append(value)
            value = value.module
        if isinstance(value, torch.nn.Module):
            self.modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[name] = value
        elif loading.is_generator(value):
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

    # -- tensors -----------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Notice tensors that were added, removed or exchanged; True when there were any."""
        cells = list(self._cells())
        for key, tensor, _ in cells:
            if why := _foreign(tensor.detach()):
                raise NotProtectable(f"{key[0]}.{key[1]} {key[2]}".rstrip() + f" is {why}")
        now = [(key, t.data_ptr(), t.numel()) for key, t, _ in cells]
        if now == self._print:
            return False
        self._print = now
        seen: set[tuple[int, int]] = set()
        self.replicated, self.private, self._keys = [], [], []
        originals: list[torch.Tensor] = []
        for key, tensor, buffer in cells:
            where = (tensor.data_ptr(), tensor.numel())
            if tensor.numel() == 0 or where in seen:  # tied weights are one tensor
                continue
            seen.add(where)
            own = (
                buffer or key in self.apart or (key[2] != "" and (key[0], key[1], "") in self.apart)
            )
            (self.private if own else self.replicated).append(_flat(tensor.detach(), key))
            if not own:
                self._keys.append(key)
                originals.append(tensor)
        # `changed` and `refresh` look at all addresses, so that those in here are right
        self.replicated_rows = attempt.Rows(self.replicated, originals)
        self.private_rows = attempt.Rows(self.private)
        self._places = attempt.Places(
            torch.Tensor, self._leaf_modules(), self.optimizers.values(), self._loose()
        )
        # of optimizers whose state has more than tensors (LBFGS's counters and lists): where
        others = {
            name: [
                i
                for i, p in enumerate(_parameters(o))
                if any(not isinstance(v, torch.Tensor) for v in (o.state.get(p) or {}).values())
            ]
            for name, o in self.optimizers.items()
        }
        self._others = {name: indices for name, indices in others.items() if indices}
        return True

    def changed(self) -> bool:
        """A cheap look (~40 ns a tensor) whether `refresh` is due."""
        return self._places.changed()

    def _leaf_modules(self) -> list[torch.nn.Module]:
        found = getattr(self, "_leaves", None)
        if found is None:
            # a module of the script's own may get a buffer later
            found = self._leaves = [
                m
                for m in self._all_modules
                if m._parameters or m._buffers or not type(m).__module__.startswith("torch.")
            ]
        return found

    def _loose(self) -> list[torch.nn.Parameter]:
        """Parameters that only an optimizer has."""
        owned = {id(p) for module in self.modules.values() for p in module.parameters()}
        return [p for o in self.optimizers.values() for p in _parameters(o) if id(p) not in owned]

    def _cells(self) -> Iterator[tuple[Key, torch.Tensor, bool]]:
        """(key, tensor, is a buffer), in an order that depends on names and registration only."""
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters(remove_duplicate=False):
                yield (name, key, ""), parameter, False
            for key, buffer in module.named_buffers(remove_duplicate=False):
                yield (name, key, ""), buffer, True
        owners: dict[int, Key] = {
            id(p): (n, k, "")
            for n, m in self.modules.items()
            for k, p in m.named_parameters(remove_duplicate=False)
        }
        for name, optimizer in self.optimizers.items():
            for index, parameter in enumerate(_parameters(optimizer)):
                if id(parameter) not in owners:  # of no module that is protected
                    owners[id(parameter)] = (name, index, LOOSE)
                    yield (name, index, LOOSE), parameter, False
                state = optimizer.state.get(parameter) or {}
                apart = owners.get(id(parameter)) in self.apart
                for key in sorted(k for k, v in state.items() if isinstance(v, torch.Tensor)):
                    yield (name, index, key), state[key], apart

    def of_modules(self) -> list[torch.Tensor]:
        """Those of the replicated rows that are parameters."""
        return [row for row, key in zip(self.replicated, self._keys, strict=True) if key[2] == ""]

    def of_optimizers(self) -> list[torch.Tensor]:
        """Those of the replicated rows that are optimizer state."""
        return [row for row, key in zip(self.replicated, self._keys, strict=True) if key[2] != ""]

    def versions(self) -> bytes:
        """In-place changes so far, per replicated tensor; equal before and after means
        untouched."""
        return self.replicated_rows.versions()

    def set_apart(self, indices: Iterable[int]) -> None:
        """The replicated tensors at `indices` differ between the ranks: treat them, and their
        optimizer state, as private."""
        self.apart |= {self._keys[i] for i in indices}
        self._print = None
        self.refresh()

    # -- structure: what tensors there are, so that another process can make them ------------------

    def structure(self) -> bytes:
        """What describes the optimizers' tensors and settings, the modules' buffers, and which
        tensors are private."""
        optimizers = {}
        for name, optimizer in self.optimizers.items():
            states = []
            for parameter in _parameters(optimizer):
                state = optimizer.state.get(parameter) or {}
                states.append({k: _describe(v) for k, v in state.items()})
            optimizers[name] = states
        try:
            found = {
                "optimizers": optimizers,
                "apart": sorted(self.apart, key=str),
                "buffers": module_state.buffers(self.modules),
            }
            return plain.encode(found)
        except plain.Unrecordable:
            for name, states in optimizers.items():
                self._say_unrecordable(name, "state", states)
            raise

    def settings(self) -> bytes:
        """What changes from step to step and is small: param_groups, non-tensor optimizer state,
        small objects, modules' attributes and modes; the same object where nothing has changed.
        Raises UnsupportedState for a value that cannot be recorded, and names it."""
        attributes, modes = self._attributes.take(), self._modes.take()
        alone = not (self._others or self.small or attributes)
        if alone and modes is self._alone and self._groups.same():
            return self._settings
        others = {
            name: {
                i: _others(self.optimizers[name].state[_parameters(self.optimizers[name])[i]])
                for i in indices
            }
            for name, indices in self._others.items()
        }
        small = {n: v.state_dict() for n, v in self.small.items()}
        rest = (others, small, attributes, modes)
        if self._groups.same() and self._rest.same(rest):
            return self._settings
        # before they are encoded: what is changed meanwhile is seen the next time
        known = frozen.Groups(self.optimizers.values()), frozen.Frozen(rest)
        groups = {
            n: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups]
            for n, o in self.optimizers.items()
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
                    self._say_unrecordable(name, kind, value)
            raise
        (self._groups, self._rest), self._alone = known, modes if alone else None
        if found != self._settings:
            self._settings = found
        return self._settings

    @staticmethod
    def _say_unrecordable(name: str, kind: str, value: Any) -> None:
        try:
            plain.encode(value)
        except plain.Unrecordable as error:
            raise UnsupportedState(
                f"protect({name}=...): its {kind} has {error}, which cannot be recorded; allowed"
                " are numbers, text, tensors, arrays, and lists, tuples, sets and dicts of these:"
                " give it a state_dict() of such values, or leave it out"
            ) from None

    def put_settings(self, data: bytes) -> None:
        groups, others, small, attributes, modes = plain.decode(data)
        self._attributes.put(attributes)
        module_state.put_modes([*self._all_modules, *self.ddps], *modes)
        for name, saved in groups.items():
            for group, values in zip(self.optimizers[name].param_groups, saved, strict=True):
                for gone in set(group) - set(values) - {"params"}:
                    del group[gone]
                for key, value in values.items():
                    _put_value(group, key, value)
        for name, of_parameters in others.items():
            optimizer = self.optimizers[name]
            for index, values in of_parameters.items():
                optimizer.state[_parameters(optimizer)[index]].update(values)
        for name, value in small.items():
            self.small[name].load_state_dict(value)
            if isinstance(self.small[name], torch.amp.GradScaler):
                # not part of its state_dict: what it did to each optimizer since the last update(),
                # in the attempt that was cut
                self.small[name]._per_optimizer_states.clear()

    def conform(self, data: bytes) -> None:
        """Make this process's optimizers have exactly the tensors that a `structure` describes;
        their values come later."""
        structure = plain.decode(data)
        module_state.conform(self.modules, structure["buffers"])
        self.apart = {tuple(k) for k in structure["apart"]}
        for name, states in structure["optimizers"].items():
            if name not in self.optimizers:
                raise UnsupportedState(
                    f"the replacement's script did not protect {name!r}, which its predecessor did"
                )
            optimizer = self.optimizers[name]
            parameters = _parameters(optimizer)
            if len(parameters) != len(states):
                raise UnsupportedState(
                    f"{name} has {len(parameters)} parameters in the replacement and {len(states)}"
                    " in its predecessor"
                )
            for parameter, wanted in zip(parameters, states, strict=True):
                if not wanted:
                    optimizer.state.pop(parameter, None)
                    continue
                state = optimizer.state[parameter]
                for key in [k for k in state if k not in wanted]:
                    del state[key]
                for key, (kind, value) in wanted.items():
                    if kind != "tensor":
                        state[key] = value
                        continue
                    shape, stride, dtype, device = value
                    have = state.get(key)
                    if not (
                        isinstance(have, torch.Tensor)
                        and have.shape == torch.Size(shape)
                        and have.dtype == dtype
                    ):
                        state[key] = torch.empty_strided(
                            shape, stride, dtype=dtype, device=parameter.device if device else "cpu"
                        )
        self._print = None
        self.refresh()

    def is_individual(self) -> bool:
        """Whether another rank's forward over the same input may give something else: it depends on
        more than parameters and buffers."""
        draws = any(
            loading.is_generator(value)
            for module in self._all_modules
            for value in vars(module).values()
        )
        return bool(self.apart or draws or self._attributes.take())

    def conform_buffers(self, data: bytes) -> None:
        """Make the modules have exactly the buffers that a `structure` describes, the rest being in
        place."""
        module_state.conform(self.modules, plain.decode(data)["buffers"])
        self.refresh()

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """Each once: those of the modules, then those that only an optimizer has."""
        seen: set[int] = set()
        for owner in (
            *(m.parameters() for m in self.modules.values()),
            *map(_parameters, self.optimizers.values()),
        ):
            for parameter in owner:
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield parameter


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _is_stateful(value: Any) -> bool:
    """Whether a list with this in it is a list of things to protect, and not a thing itself."""
    if isinstance(value, (list, tuple)):
        return any(_is_stateful(item) for item in value)
    return hasattr(value, "state_dict") or loading.is_generator(value)


def _others(state: dict[Any, Any]) -> dict[Any, Any]:
    return {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)}


def _put_value(group: dict[str, Any], key: str, value: Any) -> None:
    """A tensor (a learning rate that a graph has captured) stays the tensor that it is, on its
    device."""
    present = group.get(key)
    if (
        isinstance(present, torch.Tensor)
        and isinstance(value, torch.Tensor)
        and present.shape == value.shape
    ):
        present.copy_(value)
    else:
        group[key] = value


def _foreign(tensor: torch.Tensor) -> str:
    """Why the memory of this tensor is not what it seems, "" for an ordinary one."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        kind = type(tensor).__name__
        text = (
            "sharded state (FSDP2, tensor parallelism) cannot be brought back by this version"
            if kind == "DTensor"
            else ""
        )
        return f"a {kind}: {text or 'only plain tensors can be brought back'}"
    if tensor.layout is not torch.strided:
        return f"of layout {tensor.layout}: only dense tensors can be brought back"
    if tensor.device.type == "meta":
        return "on the meta device, without memory: materialize the module before protect()"
    return ""


def _describe(value: Any) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        return "tensor", (
            tuple(value.shape),
            value.stride(),
            value.dtype,
            value.device.type != "cpu",
        )
    return "value", value


def _flat(tensor: torch.Tensor, key: Key) -> torch.Tensor:
    """The tensor's memory as one row of bytes, in storage order; shares memory and version
    counter."""
    if tensor.is_contiguous():
        row = tensor.view(-1)
    elif plain.is_dense(tensor):  # channels_last, transposed: replicas have the same strides
        row = torch.as_strided(tensor, (tensor.numel(),), (1,))
    else:
        raise UnsupportedState(
            f"{key[0]}.{key[1]} {key[2]} is neither contiguous nor dense; make it contiguous()"
        )
    return row.view(torch.uint8)
