"""The training state of a rank: what of it is the same on all replicas, what is its own, and how to put either back.

*Replicated* tensors (parameters, optimizer state) are listed in an order that is the same on every rank; stripes and copies between ranks
work on them as flat bytes. *Private* are module buffers (batch-norm statistics differ per rank under DDP) and whatever was found to
differ when hashes were compared at the start. Everything else with a state_dict() (scheduler, scaler, loader…) is small and is
kept whole, per rank. Nothing is assumed about optimizers but `state` and `param_groups`.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

Key = tuple[str, Any, str]  # (owner's name, where in it, which tensor)


class UnsupportedState(RuntimeError):
    """Something that was given to protect() cannot be carried over; the text says what and what to do instead."""


class TrainingState:
    """See the module docstring. `objects`: name -> module, optimizer, or anything with state_dict() and load_state_dict()."""

    def __init__(self, objects: dict[str, Any]) -> None:
        self.modules: dict[str, torch.nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.small: dict[str, Any] = {}
        self.ddps: list[DistributedDataParallel] = []
        for name, value in objects.items():
            self._register(name, value)
        if not self.modules:
            raise UnsupportedState("protect() was given no torch.nn.Module; pass model=... so that there is a state to protect")
        self.apart: set[Key] = set()  # parameters that differ between ranks
        self._print: Any = None
        self.replicated: list[torch.Tensor] = []
        self.private: list[torch.Tensor] = []
        self.refresh()

    def _register(self, name: str, value: Any) -> None:
        if isinstance(value, DistributedDataParallel):
            self.ddps.append(value)
            value = value.module
        if isinstance(value, torch.nn.Module):
            self.modules[name] = value
        elif isinstance(value, torch.optim.Optimizer):
            self.optimizers[name] = value
        elif isinstance(value, (list, tuple)):
            for i, item in enumerate(value):
                self._register(f"{name}[{i}]", item)
        elif hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            self.small[name] = value
        else:
            raise UnsupportedState(
                f"protect({name}=...): a {type(value).__name__} has no state_dict() and load_state_dict(); give it both, or leave it out"
            )

    # -- tensors -----------------------------------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Notice tensors that were added, removed or exchanged; True when there were any."""
        cells = list(self._cells())
        now = [(key, t.data_ptr(), t.numel()) for key, t, _ in cells]
        if now == self._print:
            return False
        self._print = now
        seen: set[tuple[int, int]] = set()
        self.replicated, self.private, self._keys = [], [], []
        for key, tensor, buffer in cells:
            where = (tensor.data_ptr(), tensor.numel())
            if tensor.numel() == 0 or where in seen:  # tied weights are one tensor
                continue
            seen.add(where)
            own = buffer or key in self.apart or (key[2] != "" and (key[0], key[1], "") in self.apart)
            (self.private if own else self.replicated).append(_flat(tensor, key))
            if not own:
                self._keys.append(key)
        self._guard = self._watch()
        return True

    def changed(self) -> bool:
        """A cheap look (~60 ns a tensor) whether `refresh` is due."""
        return self._watch() != self._guard

    def _watch(self) -> list[int]:
        marks = []
        for module in self._leaf_modules():
            marks += [p.data_ptr() for p in module._parameters.values() if p is not None]
            marks += [b.data_ptr() for b in module._buffers.values() if b is not None]
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                marks += [v.data_ptr() for v in state.values() if isinstance(v, torch.Tensor)]
        return marks

    def _leaf_modules(self) -> list[torch.nn.Module]:
        found = getattr(self, "_leaves", None)
        if found is None:
            found = self._leaves = [m for root in self.modules.values() for m in root.modules() if m._parameters or m._buffers]
        return found

    def _cells(self) -> Iterator[tuple[Key, torch.Tensor, bool]]:
        """(key, tensor, is a buffer), in an order that depends on names and registration only."""
        for name, module in self.modules.items():
            for key, parameter in module.named_parameters(remove_duplicate=False):
                yield (name, key, ""), parameter.detach(), False
            for key, buffer in module.named_buffers(remove_duplicate=False):
                yield (name, key, ""), buffer.detach(), True
        owners = {id(p): (n, k, "") for n, m in self.modules.items() for k, p in m.named_parameters(remove_duplicate=False)}
        for name, optimizer in self.optimizers.items():
            for index, parameter in enumerate(_parameters(optimizer)):
                state = optimizer.state.get(parameter) or {}
                apart = owners.get(id(parameter)) in self.apart
                for key in sorted(k for k, v in state.items() if isinstance(v, torch.Tensor)):
                    yield (name, index, key), state[key].detach(), apart

    def of_modules(self) -> list[torch.Tensor]:
        """Those of the replicated rows that are parameters."""
        return [row for row, key in zip(self.replicated, self._keys, strict=True) if key[2] == ""]

    def of_optimizers(self) -> list[torch.Tensor]:
        """Those of the replicated rows that are optimizer state."""
        return [row for row, key in zip(self.replicated, self._keys, strict=True) if key[2] != ""]

    def versions(self) -> list[int]:
        """In-place changes so far, per replicated tensor; equal before and after means untouched."""
        return [t._version for t in self.replicated]

    def set_apart(self, indices: Iterable[int]) -> None:
        """The replicated tensors at `indices` differ between the ranks: treat them, and their optimizer state, as private."""
        self.apart |= {self._keys[i] for i in indices}
        self._print = None
        self.refresh()

    # -- structure: what tensors there are, so that another process can make them -------------------------------------------

    def structure(self) -> dict[str, Any]:
        """Plain values that describe the optimizers' tensors and settings and which tensors are private."""
        optimizers = {}
        for name, optimizer in self.optimizers.items():
            states = []
            for parameter in _parameters(optimizer):
                state = optimizer.state.get(parameter) or {}
                states.append({k: _describe(v) for k, v in state.items()})
            optimizers[name] = states
        return {"optimizers": optimizers, "apart": sorted(self.apart, key=str)}

    def settings(self) -> bytes:
        """What changes from step to step and is small: param_groups, non-tensor optimizer state, small objects."""
        groups = {n: [{k: v for k, v in g.items() if k != "params"} for g in o.param_groups] for n, o in self.optimizers.items()}
        return pickle.dumps((groups, {n: v.state_dict() for n, v in self.small.items()}), 5)

    def put_settings(self, data: bytes) -> None:
        groups, small = pickle.loads(data)
        for name, saved in groups.items():
            for group, values in zip(self.optimizers[name].param_groups, saved, strict=True):
                for gone in set(group) - set(values) - {"params"}:
                    del group[gone]
                group.update(values)
        for name, value in small.items():
            self.small[name].load_state_dict(value)
            if isinstance(self.small[name], torch.amp.GradScaler):
                # not part of its state_dict: what it did to each optimizer since the last update(), in the attempt that was cut
                self.small[name]._per_optimizer_states.clear()

    def conform(self, structure: dict[str, Any]) -> None:
        """Make this process's optimizers have exactly the tensors that `structure` describes; their values come later."""
        self.apart = {tuple(k) for k in structure["apart"]}
        for name, states in structure["optimizers"].items():
            if name not in self.optimizers:
                raise UnsupportedState(f"the replacement's script did not protect {name!r}, which its predecessor did")
            optimizer = self.optimizers[name]
            parameters = _parameters(optimizer)
            if len(parameters) != len(states):
                raise UnsupportedState(f"{name} has {len(parameters)} parameters in the replacement and {len(states)} in its predecessor")
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
                    if not (isinstance(have, torch.Tensor) and have.shape == torch.Size(shape) and have.dtype == dtype):
                        state[key] = torch.empty_strided(shape, stride, dtype=dtype, device=parameter.device if device else "cpu")
        self._print = None
        self.refresh()

    def clear_gradients(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        for module in self.modules.values():
            yield from module.parameters()


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _describe(value: Any) -> tuple[str, Any]:
    if isinstance(value, torch.Tensor):
        return "tensor", (tuple(value.shape), value.stride(), value.dtype, value.device.type != "cpu")
    return "value", value


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether every byte between the tensor's first and last belongs to it, once."""
    reach = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return 0 not in tensor.stride() and reach == tensor.numel()


def _flat(tensor: torch.Tensor, key: Key) -> torch.Tensor:
    """The tensor's memory as one row of bytes, in storage order; shares memory and version counter."""
    if tensor.is_contiguous():
        row = tensor.view(-1)
    elif _is_dense(tensor):  # channels_last, transposed: replicas have the same strides
        row = torch.as_strided(tensor, (tensor.numel(),), (1,))
    else:
        raise UnsupportedState(f"{key[0]}.{key[1]} {key[2]} is neither contiguous nor dense; make it contiguous()")
    return row.view(torch.uint8)
