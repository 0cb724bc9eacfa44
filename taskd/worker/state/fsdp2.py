"""FSDP2 (`fully_shard`): drops what it keeps of a failed step.

Between two steps every parameter is sharded. An attempt that fails in its forward or backward
leaves some gathered, gradients half reduced and callbacks queued; all of that is dropped here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

PACKAGE = "torch.distributed.fsdp._fully_shard"
RESET = "reset_iter_state"  # of the root's module; seen in torch 2.13 and 2.15
BY_TORCH = ("_is_root", "_comm_ctx")
GROUP_BY_TORCH = ("_all_gather_result", "fsdp_params")
STATE = ("_training_state", "_state_ctx", "_comm_ctx")
ACCUMULATED = "unsharded_accumulated_grad"
GROUPS = ("_fsdp_param_groups", "_fsdp_param_group")  # a list; before torch 2.12 one or None
CONTEXT = ("iter_forward_root", "post_backward_final_callback_queued", "is_last_backward")
COMMUNICATION = ("all_gather_state", "post_forward_order")
SCATTERED = ("reduce_scatter_states", "reduce_scatter_state")  # likewise
GROUP = (
    "_training_state",
    "_all_gather_result",
    "_post_reduce_event",
    "_reshard_after_forward_event",
    "_partial_reduce_output",
    "_all_reduce_state",
    "_post_forward_indices",
    "fsdp_params",
)


def lacking(modules: Iterable[torch.nn.Module]) -> list[str]:
    """What this torch lacks for the FSDP2 modules among `modules` to be reset."""
    missing: list[str] = []
    if any(hasattr(module, RESET) for module in _fsdp(modules)):
        for state in _states(modules):
            missing += _without("FSDPState", state, BY_TORCH)
            for group in _groups(state):
                missing += _without("FSDPParamGroup", group, GROUP_BY_TORCH)
        return sorted(set(missing))
    for state in _states(modules):
        missing += _without("FSDPState", state, STATE)
        if not any(hasattr(state, name) for name in GROUPS):
            missing.append(f"FSDPState.{GROUPS[0]}")
        missing += _without("FSDPStateContext", getattr(state, "_state_ctx", None), CONTEXT)
        # these come with the first forward
        begin = getattr(type(getattr(state, "_comm_ctx", None)), "lazy_init", None)
        assigned = begin.__code__.co_names if begin is not None else ()
        missing += [f"FSDPCommContext.{name}" for name in COMMUNICATION if name not in assigned]
        if not any(name in assigned for name in SCATTERED):
            missing.append(f"FSDPCommContext.{SCATTERED[0]}")
        for group in _groups(state):
            missing += _without("FSDPParamGroup", group, (*GROUP, "_to_sharded"))
            for parameter in getattr(group, "fsdp_params", ()):
                names = (ACCUMULATED, "sharded_param")
                missing += _without("FSDPParam", parameter, names)
    return sorted(set(missing))


def _without(kind: str, owner: Any, names: Iterable[str]) -> list[str]:
    return [f"{kind}.{name}" for name in names if not hasattr(owner, name)]


def reset(modules: Iterable[torch.nn.Module]) -> None:
    """Bring every FSDP2 module to where it is between two steps; gradients are dropped."""
    found = list(_fsdp(modules))
    if any(hasattr(module, RESET) for module in found):
        _reset_by_torch(found)
        return
    for state in _states(modules):
        idle = type(state._training_state).IDLE
        state._training_state = idle
        context = state._state_ctx
        context.iter_forward_root = None
        context.post_backward_final_callback_queued = False
        context.is_last_backward = True
        communication = state._comm_ctx
        if hasattr(communication, COMMUNICATION[0]):
            communication.all_gather_state = None
            communication.post_forward_order.clear()
            if hasattr(communication, SCATTERED[0]):
                communication.reduce_scatter_states.clear()
            else:
                communication.reduce_scatter_state = None
        for group in _groups(state):
            group._training_state = type(group._training_state).IDLE
            group._all_gather_result = group._post_reduce_event = None
            group._reshard_after_forward_event = group._partial_reduce_output = None
            group._all_reduce_state = None
            group._post_forward_indices.clear()
            _drop_gradients(group)
            group._to_sharded()


def _drop_gradients(group: Any) -> None:
    for parameter in group.fsdp_params:
        if ACCUMULATED in vars(parameter):  # from torch 2.15 on it is read from the next
            setattr(parameter, ACCUMULATED, None)
        if hasattr(parameter, "_unsharded_param"):
            parameter._unsharded_param.grad = None
        parameter.sharded_param.grad = None


def _reset_by_torch(found: list[Any]) -> None:
    """It waits for what is under way, which an interruption has ended with an error; and torch
    2.13 keeps the gradients that wait for others."""
    states = [module._get_fsdp_state() for module in found]
    for state in states:
        state._comm_ctx.active_gradient_reduction = None
        for group in _groups(state):
            group._all_gather_result = None
            _drop_gradients(group)
    for module, state in zip(found, states, strict=True):
        # these come with the first forward, and the root with them
        if hasattr(state._comm_ctx, SCATTERED[0]) and state._is_root is not False:
            getattr(module, RESET)()


REDUCES = "all_reduce_grads"  # of a group: HSDP adds its gradients over the replicas


def replicated(modules: Iterable[torch.nn.Module]) -> list[Any]:
    """The parameter groups whose gradients are added over replicas: HSDP's."""
    return [
        group
        for state in _states(modules)
        for group in _groups(state)
        if hasattr(group.mesh_info, "replicate_process_group")
    ]


def managed(modules: Iterable[torch.nn.Module]) -> set[int]:
    """The parameters, by identity, whose gradients FSDP2 makes."""
    return {
        id(parameter.sharded_param)
        for state in _states(modules)
        for group in _groups(state)
        for parameter in group.fsdp_params
    }


def roots(modules: Iterable[torch.nn.Module]) -> list[torch.nn.Module]:
    """All FSDP2 modules: each may be called by itself."""
    return list(_fsdp(modules))


def settle(modules: Iterable[torch.nn.Module]) -> None:
    """Reshard, between two steps, parameters that an evaluation has left gathered."""
    for module in _fsdp(modules):
        module.reshard()


def _states(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    for module in _fsdp(modules):
        yield module._get_fsdp_state()


def _groups(state: Any) -> list[Any]:
    if hasattr(state, GROUPS[0]):
        return list(state._fsdp_param_groups)
    group = getattr(state, GROUPS[1], None)
    return [group] if group is not None else []


def _fsdp(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    package = sys.modules.get(PACKAGE)
    if package is None:  # no module can be one
        return
    for root in modules:
        yield from (m for m in root.modules() if isinstance(m, package.FSDPModule))
