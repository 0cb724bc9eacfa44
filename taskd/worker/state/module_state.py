"""A module's state besides the values of its parameters and buffers: the buffers and their shapes,
training mode, and which parameters are trained.

All of it may change while a job trains: a queue that grows, a buffer that the first forward makes,
a body that is unfrozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from taskd.worker.state import plain
from taskd.worker.state.stored_attributes import Exchanges

# dtype, shape, strides, is on the host
Described = tuple[str, tuple[int, ...], tuple[int, ...], bool] | None


def buffers(modules: dict[str, torch.nn.Module]) -> list[tuple[str, str, bool, Described]]:
    """(module, name, is persistent, description) of every buffer; None describes one registered
    without a tensor."""
    return [
        (path, key, key not in module._non_persistent_buffers_set, _describe(buffer))
        for path, module in _all(modules)
        for key, buffer in module._buffers.items()
    ]


def conform(
    modules: dict[str, torch.nn.Module],
    wanted: Iterable[tuple[str, str, bool, Described]],
    exchanges: Exchanges,
) -> None:
    """Give the modules exactly the buffers `wanted`; their values come later, and are not written
    to those of `exchanges`. Raises RuntimeError if a module is missing."""
    made: dict[int, torch.Tensor | None] = {}  # by what it replaces: two modules may have it
    here = dict(_all(modules))
    rest = {(path, key) for path, module in here.items() for key in module._buffers}
    for path, key, persistent, described in wanted:
        module = here.get(path)
        if module is None:
            raise RuntimeError(
                f"the record has a buffer {key} of {path}, which this process does not have"
            )
        rest.discard((path, key))
        present = module._buffers.get(key)
        alike = key in module._buffers and _describe(present) == described
        if alike and (present is None or not exchanges.look(f"{path}.{key}", [present])):
            continue
        device = present.device if present is not None else _device(module, modules)
        if not alike or id(present) not in made:
            made[id(present)] = None if described is None else _empty(described, device)
        module._buffers[key] = made[id(present)]
        (
            module._non_persistent_buffers_set.discard
            if persistent
            else module._non_persistent_buffers_set.add
        )(key)
    for path, key in rest:
        del here[path]._buffers[key]
        here[path]._non_persistent_buffers_set.discard(key)


def put_modes(modules: Iterable[torch.nn.Module], training: bytes, wants: bytes) -> None:
    """Restore training modes and requires_grad flags. Raises ValueError if the number of modules or
    parameters differs from what `attempt.Modes` saw."""
    known = list(modules)
    for module, mode in zip(known, training, strict=True):
        module.training = bool(mode)
    parameters = [p for m in known for p in m._parameters.values() if p is not None]
    for parameter, want in zip(parameters, wants, strict=True):
        if parameter.requires_grad != bool(want):
            parameter.requires_grad_(bool(want))


def _all(modules: dict[str, torch.nn.Module]) -> Iterator[tuple[str, torch.nn.Module]]:
    for name, root in modules.items():
        for path, module in root.named_modules():
            yield f"{name}.{path}" if path else name, module


def _describe(buffer: torch.Tensor | None) -> Described:
    if buffer is None:
        return None
    return (
        plain.dtype_name(buffer.dtype),
        tuple(buffer.shape),
        tuple(buffer.stride()),
        buffer.device.type == "cpu",
    )


def _empty(described: Any, device: torch.device) -> torch.Tensor:
    dtype, shape, stride, on_host = described
    where = torch.device("cpu") if on_host else device
    return torch.empty_strided(shape, stride, dtype=plain.dtype_of(dtype), device=where)


def _device(module: torch.nn.Module, modules: dict[str, torch.nn.Module]) -> torch.device:
    roots = (module, *modules.values())
    return next((p.device for root in roots for p in root.parameters()), torch.device("cpu"))
