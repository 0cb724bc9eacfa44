"""Which engines of DeepSpeed are protected, and what a failed attempt leaves behind. The engine
here is a stand-in; tests/packages trains with the real one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from taskd.worker.state import deepspeed
from taskd.worker.state.given import NotProtectable, expanded
from taskd.worker.state.training_state import TrainingState


class Bucket:
    def __init__(self) -> None:
        self.index, self.elements = 1, 4

    def clear(self) -> None:
        self.elements = 0


class Hooks:
    def __init__(self) -> None:
        self.depth, self.seen, self.hooks = 0, False, list[int]()


class DeepSpeedZeroOptimizer:
    cpu_offload = has_moe_layers = zenflow = False
    torch_autocast_gradscaler = None

    def __init__(self, model: torch.nn.Module) -> None:
        self.bit16_groups = [[p] for p in model.parameters()]
        self.single_partition_of_fp32_groups = [
            torch.nn.Parameter(p.detach().flatten()[:1].clone()) for p in model.parameters()
        ]
        groups = [{"params": [p]} for p in self.single_partition_of_fp32_groups]
        self.optimizer = torch.optim.AdamW(groups, 0.1)
        self.averaged_gradients: dict[int, object] = {0: None, 1: None}
        self.all_grad_tensors: dict[int, object] = {}
        self.ipg_buckets = {torch.float32: Bucket()}
        self.params_already_reduced = [False, False]
        self.previous_reduced_grads: dict[int, list[torch.Tensor]] = {}
        self.micro_step_id = -1
        self.extra_large_param_to_reduce: dict[torch.dtype, torch.Tensor] = {}
        self.loss_scaler = SimpleNamespace(cur_scale=8.0, cur_iter=3)
        self.overflow, self.external_loss_scale = False, None
        self._backward_hook_state = Hooks()
        self.reset: list[str] = []

    def _release_ipg_buffers(self) -> None:
        self.reset.append("buffers")

    def reset_partition_gradient_structures(self) -> None:
        self.reset.append("structures")


class DeepSpeedZeroOptimizer_Stage3:
    pass


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, optimizer: object = None, stage: int = 1) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        self.optimizer = optimizer or DeepSpeedZeroOptimizer(self.module)
        self.stage, self.micro_steps, self.deepcompile = stage, 2, False
        self.timers = SimpleNamespace(timers={"step": SimpleNamespace(reset=self._timer)})
        self.timers_reset = 0

    def _timer(self) -> None:
        self.timers_reset += 1

    def gradient_accumulation_steps(self) -> int:
        return 2

    def is_deepcompile_enabled(self) -> bool:
        return self.deepcompile

    def zero_optimization_stage(self) -> int:
        return self.stage


class PipelineEngine(DeepSpeedEngine):
    pass


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    for (module, name), kind in (
        (deepspeed.ENGINE, DeepSpeedEngine),
        (deepspeed.ZERO, DeepSpeedZeroOptimizer),
    ):
        made = ModuleType(module)
        setattr(made, name, kind)
        monkeypatch.setitem(sys.modules, module, made)


def missing(engine: DeepSpeedEngine) -> DeepSpeedEngine:
    del engine.optimizer.ipg_buckets
    return engine


def using(**what: object) -> DeepSpeedEngine:
    engine = DeepSpeedEngine()
    vars(engine.optimizer).update(what)
    return engine


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (DeepSpeedEngine, ""),
        (lambda: DeepSpeedEngine(torch.optim.SGD([torch.zeros(1)], 0.1), 0), ""),
        (lambda: DeepSpeedEngine(DeepSpeedZeroOptimizer_Stage3(), 3), "DeepSpeed's ZeRO 3"),
        (lambda: missing(DeepSpeedEngine()), "lacks DeepSpeedZeroOptimizer.ipg_buckets"),
        (lambda: using(cpu_offload=True), "with offload of the optimizer"),
        (lambda: using(has_moe_layers=True), "with experts (MoE)"),
        (lambda: using(zenflow=True), "with ZenFlow"),
        (lambda: using(torch_autocast_gradscaler=object()), "with its own autocast"),
        (PipelineEngine, "under a PipelineEngine"),
        (lambda: DeepSpeedEngine(Bucket(), 0), "DeepSpeed's ZeRO 0 (Bucket)"),
    ],
)
def test_which_engines_are_refused(make, why):
    refusal = deepspeed.refusal(make(), given=True)
    assert (why in refusal) if why else refusal == ""


def test_a_part_of_the_model_is_not_enough():
    engine = DeepSpeedEngine()
    assert list(deepspeed.around([engine.module])) == [engine]
    assert "protect(model=engine)" in deepspeed.refusal(engine, given=False)


@pytest.mark.parametrize("give", [lambda engine: engine, lambda engine: engine.module])
def test_the_part_of_a_rank_is_private(give):
    engine = DeepSpeedEngine()
    state = TrainingState(expanded({"model": give(engine)}))
    assert state.modules == {"model": engine}
    assert state.optimizers == {"model.optimizer": engine.optimizer.optimizer}
    assert len(state.replicated) == 2 and len(state.shards) == 2 and state.split


def test_a_compiler_that_keeps_gradients_is_refused():
    engine = DeepSpeedEngine()
    engine.deepcompile = True
    assert "deepcompile" in deepspeed.refusal(engine, given=True)


def test_what_a_failed_attempt_leaves_is_dropped():
    engine = DeepSpeedEngine()
    zero = engine.optimizer
    state, groups = TrainingState(expanded({"model": engine})), zero.optimizer.param_groups
    state.parts.take(0)
    weight = engine.module.weight
    zero.optimizer.param_groups = groups[:1]
    weight.grad = weight.grad_accum = torch.ones(2, 2)
    gradients = zero.averaged_gradients
    gradients[0] = [torch.ones(1)]
    zero.params_already_reduced[1] = True
    zero.extra_large_param_to_reduce[torch.float32] = weight
    zero.micro_step_id = 2
    hooks = zero._backward_hook_state
    hooks.depth, hooks.seen, hooks.hooks = 1, True, [1]
    with pytest.raises(NotProtectable, match="micro batches"):
        state.parts.take(1)
    state.attempt_failed()
    assert zero.optimizer.param_groups is groups and weight.grad is weight.grad_accum is None
    assert zero.averaged_gradients is gradients and gradients == {0: None, 1: None}
    assert zero.params_already_reduced == [False, False] and zero.micro_step_id == -1
    assert zero.extra_large_param_to_reduce == {} and engine.timers_reset == 1
    assert (hooks.depth, hooks.seen, hooks.hooks) == (0, False, [1])
    bucket = zero.ipg_buckets[torch.float32]
    assert (bucket.index, bucket.elements) == (0, 0) and zero.reset == ["buffers", "structures"]
    state.parts.take(1)
    engine.micro_steps = 3
    with pytest.raises(NotProtectable, match="micro batches"):
        state.parts.take(2)


def test_loss_scales_go_back():
    first, second = DeepSpeedEngine(), DeepSpeedEngine()
    zero = first.optimizer
    zero.loss_scaler.cur_scale, zero.overflow, zero.external_loss_scale = 4.0, True, 2.0
    taken = TrainingState(expanded({"model": first})).parts.take(1)
    other = TrainingState(expanded({"model": second}))
    other.parts["(ZeRO)"].put(taken["(ZeRO)"])
    found = second.optimizer
    assert vars(found.loss_scaler) == {"cur_scale": 4.0, "cur_iter": 3}
    assert (found.overflow, found.external_loss_scale) == (True, 2.0)
