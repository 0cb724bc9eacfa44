"""Describes a rank's tensors as bytes, so that another process can make them: optimizer state,
module buffers, and which tensors are private."""

from __future__ import annotations

from typing import Any

import torch

from taskd.worker.state import module_state, plain, sharded
from taskd.worker.state.given import Given, UnsupportedState, parameters_of
from taskd.worker.state.pieces import Key
from taskd.worker.state.replicas import Replicas
from taskd.worker.state.small_state import say_unrecordable
from taskd.worker.state.stored_attributes import Exchanges


def describe(
    given: Given, apart: set[Key], replicas: Replicas, pieces: dict[str, Any] | None = None
) -> bytes:
    """Describe the tensors; `apart`: keys of those that differ between ranks; `replicas`: of the
    others; `pieces`: see pieces.encode."""
    optimizers = {}
    for name, optimizer in given.optimizers.items():
        states = []
        for parameter in parameters_of(optimizer):
            state = optimizer.state.get(parameter) or {}
            states.append({k: _describe(name, k, v, parameter) for k, v in state.items()})
        optimizers[name] = states
    try:
        found = {
            "optimizers": optimizers,
            "apart": sorted(apart, key=str),
            "replicas": (replicas.of, replicas.local, replicas.members),
            "buffers": module_state.buffers(given.modules),
            "pieces": pieces,
        }
        return plain.encode(found)
    except plain.Unrecordable:
        for name, states in optimizers.items():
            say_unrecordable(name, "state", states)
        raise


def conform(given: Given, data: bytes, exchanges: Exchanges) -> tuple[set[Key], Replicas]:
    """Give this process's optimizers and buffers exactly the tensors that `take` described; returns
    which are private, and the replicas of the others. `exchanges`: of the buffers."""
    structure = plain.decode(data)
    module_state.conform(given.modules, structure["buffers"], exchanges)
    for name, states in structure["optimizers"].items():
        if name not in given.optimizers:
            raise UnsupportedState(
                f"the replacement's script did not protect {name!r}, which its predecessor did"
            )
        optimizer = given.optimizers[name]
        parameters = parameters_of(optimizer)
        if len(parameters) != len(states):
            raise UnsupportedState(
                f"{name} has {len(parameters)} parameters in the replacement and {len(states)}"
                " in its predecessor"
            )
        for parameter, wanted in zip(parameters, states, strict=True):
            _conform_state(optimizer, parameter, wanted)
    return {tuple(k) for k in structure["apart"]}, Replicas(*structure["replicas"])


def conform_buffers(given: Given, data: bytes, exchanges: Exchanges) -> None:
    module_state.conform(given.modules, plain.decode(data)["buffers"], exchanges)


def _conform_state(
    optimizer: torch.optim.Optimizer,
    parameter: torch.nn.Parameter,
    wanted: dict[Any, tuple[str, Any]],
) -> None:
    if not wanted:
        optimizer.state.pop(parameter, None)
        return
    state = optimizer.state[parameter]
    for key in [k for k in state if k not in wanted]:
        del state[key]
    for key, (kind, value) in wanted.items():
        if kind == "value":
            state[key] = value
            continue
        shape, stride, dtype, device, laid_out = value
        have = state.get(key)
        if (
            isinstance(have, torch.Tensor)
            and sharded.is_sharded(have) == (kind == "sharded")
            and sharded.local(have).shape == torch.Size(shape)
            and have.dtype == dtype
            and (kind == "tensor" or sharded.otherwise(have, parameter) == laid_out)
        ):
            continue
        place = sharded.local(parameter).device if device else "cpu"
        part = torch.empty_strided(shape, stride, dtype=dtype, device=place)
        state[key] = sharded.like(parameter, part, laid_out) if kind == "sharded" else part


def _describe(name: str, key: Any, value: Any, parameter: torch.nn.Parameter) -> tuple[str, Any]:
    if not isinstance(value, torch.Tensor):
        return "value", value
    part, laid_out = sharded.local(value), ""
    if sharded.is_sharded(value):
        try:
            laid_out = sharded.otherwise(value, parameter)
        except ValueError as error:
            raise UnsupportedState(
                f"protect({name}=...): the layout of its state {key!r} is not that of the"
                f" parameter: {error}"
            ) from None
    kind = "sharded" if sharded.is_sharded(value) else "tensor"
    return kind, (
        tuple(part.shape),
        part.stride(),
        part.dtype,
        part.device.type != "cpu",
        laid_out,
    )
