"""DeepSpeed's engines: what one holds, and what a failed step leaves in its ZeRO optimizer.

Under ZeRO 1 and 2 the optimizer inside has this rank's part of the parameters, in full precision;
the model's own parameters are views of one tensor, equal on all ranks, that is gathered after each
update. Between two steps the ZeRO optimizer keeps no gradients, unless a batch is divided into
micro batches.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

ENGINE = ("deepspeed.runtime.engine", "DeepSpeedEngine")
ZERO = ("deepspeed.runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer")
# of the ZeRO optimizer; what `reset` needs
NEEDED = (
    "optimizer",
    "cpu_offload",
    "has_moe_layers",
    "torch_autocast_gradscaler",
    "zenflow",
    "bit16_groups",
    "single_partition_of_fp32_groups",
    "averaged_gradients",
    "all_grad_tensors",
    "ipg_buckets",
    "params_already_reduced",
    "previous_reduced_grads",
    "micro_step_id",
    "extra_large_param_to_reduce",
    "loss_scaler",
    "_backward_hook_state",
    "_release_ipg_buffers",
    "reset_partition_gradient_structures",
)
# of the ZeRO optimizer, and of its loss scaler whatever is a number
NUMBERS = (
    *("overflow", "custom_loss_scaler", "external_loss_scale", "_global_grad_norm"),
    "_is_gradient_accumulation_boundary",
)
SCALER = "loss_scaler"
PLAIN = (bool, int, float, type(None))
PROTECTED = "Protected are ZeRO 0 in single precision, ZeRO 1 and ZeRO 2 (protect(model=engine))"


def is_engine(value: Any) -> bool:
    return _is(value, ENGINE)


def is_zero(value: Any) -> bool:
    """Whether it is the optimizer of ZeRO 1 and 2."""
    return _is(value, ZERO)


def _is(value: Any, kind: tuple[str, str]) -> bool:
    known = getattr(sys.modules.get(kind[0]), kind[1], None)
    return known is not None and issubclass(type(value), known)


def of(value: Any) -> Any:
    """The engine that it is, or whose model it is, if any."""
    if is_engine(value) or not isinstance(value, torch.nn.Module):
        return value if is_engine(value) else None
    return next((engine for engine in around([value]) if engine.module is value), None)


def around(modules: Iterable[torch.nn.Module]) -> Iterator[Any]:
    """The engines that hold one of the modules, or are one."""
    if ENGINE[0] not in sys.modules:
        return
    parts = {id(module) for root in modules for module in root.modules()}
    for found in gc.get_objects():
        if is_engine(found) and not parts.isdisjoint((id(found), id(found.module))):
            yield found


def parts(engine: Any) -> dict[str, Any]:
    """What an engine holds beside its model, by the attribute."""
    optimizer = engine.optimizer
    known = isinstance(optimizer, torch.optim.Optimizer) or is_zero(optimizer)
    return {"optimizer": optimizer} if known else {}


def refusal(engine: Any, given: bool) -> str:
    """Why its state cannot be restored, "" if it can. `given`: the engine is protected, not the
    model alone."""
    stage, optimizer = int(engine.zero_optimization_stage()), engine.optimizer
    if getattr(engine, "is_deepcompile_enabled", bool)():  # older engines have no compiler
        return f"DeepSpeed's compiler (deepcompile) keeps gradients where nobody sees. {PROTECTED}"
    if isinstance(optimizer, torch.optim.Optimizer) or optimizer is None:
        return ""
    kind = type(optimizer).__name__
    if not is_zero(optimizer):
        return (
            f"DeepSpeed's ZeRO {stage} ({kind}) keeps its state in a way of its own, which no"
            f" repair restores. {PROTECTED}; for shards use fully_shard (FSDP2)"
        )
    if missing := [name for name in NEEDED if not hasattr(optimizer, name)]:
        version = getattr(sys.modules.get("deepspeed"), "__version__", "")
        return f"deepspeed {version} lacks {', '.join(f'{kind}.{name}' for name in missing)}"
    if not given:
        return f"DeepSpeed's ZeRO {stage} needs the engine: protect(model=engine)"
    if type(engine).__name__ != ENGINE[1]:
        return f"ZeRO {stage} under a {type(engine).__name__} was not tried. {PROTECTED}"
    for what, used in (
        ("offload of the optimizer", optimizer.cpu_offload),
        ("ZenFlow", optimizer.zenflow),
        ("experts (MoE)", optimizer.has_moe_layers),
        ("its own autocast with float16", optimizer.torch_autocast_gradscaler is not None),
        ("Muon", "muon" in type(optimizer.optimizer).__name__.lower()),
    ):
        if used:
            return f"ZeRO {stage} with {what} cannot be restored. {PROTECTED}, without it"
    return ""


class Engines:
    """The engines of a job: what they keep of a failed step, and the numbers of ZeRO optimizers."""

    def __init__(self) -> None:
        self._all: list[Any] = []
        # id of a ZeRO optimizer -> the groups of the one inside, which an update takes one by one
        self._groups: dict[int, list[dict[str, Any]]] = {}

    def add(self, engine: Any) -> None:
        self._all.append(engine)

    def zeros(self) -> list[Any]:
        return [e.optimizer for e in self._all if is_zero(e.optimizer)]

    def waits(self) -> bool:
        """Whether the gradients of micro batches wait for others, which no record has."""
        counts = [(e.micro_steps, e.gradient_accumulation_steps()) for e in self._all]
        return any(steps % each for steps, each in counts) or any(
            value is not None
            for zero in self.zeros()
            for held in (zero.averaged_gradients, zero.all_grad_tensors)
            for value in held.values()
        )

    def numbers(self) -> list[dict[str, Any]]:
        """Of each ZeRO optimizer, and of its loss scaler."""
        self._groups = {id(zero): zero.optimizer.param_groups for zero in self.zeros()}
        return [
            {name: getattr(zero, name) for name in NUMBERS if hasattr(zero, name)}
            | {f"{SCALER}.{k}": v for k, v in vars(zero.loss_scaler).items() if type(v) in PLAIN}
            for zero in self.zeros()
        ]

    def put(self, numbers: list[dict[str, Any]]) -> None:
        for zero, values in zip(self.zeros(), numbers, strict=True):
            for name, value in values.items():
                of, _, inner = name.partition(".")
                setattr(zero.loss_scaler if inner else zero, inner or of, value)

    def reset(self) -> None:
        """Drop what an attempt that failed has left."""
        for engine in self._all:
            for timers in (getattr(of, "timers", None) for of in (engine, engine.optimizer)):
                for timer in getattr(timers, "timers", {}).values():
                    timer.reset()
        for zero in self.zeros():
            zero.optimizer.param_groups = self._groups.get(id(zero), zero.optimizer.param_groups)
            for parameter in (p for group in zero.bit16_groups for p in group):
                parameter.grad = parameter.grad_accum = None
            for partition in zero.single_partition_of_fp32_groups:
                partition.grad = None
            for held in (zero.averaged_gradients, zero.all_grad_tensors):  # others refer to them
                held.update(dict.fromkeys(held))
            for bucket in zero.ipg_buckets.values():
                bucket.clear()
                bucket.index = 0
            zero._release_ipg_buffers()
            zero.extra_large_param_to_reduce.clear()
            zero.params_already_reduced[:] = [False] * len(zero.params_already_reduced)
            zero.previous_reduced_grads.clear()
            zero.reset_partition_gradient_structures()
            zero.micro_step_id = -1
            hooks = zero._backward_hook_state
            fresh = vars(type(hooks)())
            vars(hooks).update({k: v for k, v in fresh.items() if type(v) in PLAIN})
