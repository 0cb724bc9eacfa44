"""Why no rank can stand in for another, and what of its state a rank has for itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP

from taskd.worker.elastic import private
from taskd.worker.elastic.inelastic import Inelastic
from taskd.worker.state import plain
from taskd.worker.state.training_state import TrainingState


@pytest.fixture(autouse=True)
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def known(model: nn.Module, **more: Any) -> Inelastic:
    module = model.module if isinstance(model, DDP) else model
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    state = TrainingState({"model": model, "optimizer": optimizer})
    made = Inelastic(SimpleNamespace(rank=0, state=state))  # type: ignore[arg-type]
    made.loops = True
    for name, value in more.items():
        setattr(made, name, value)
    return made


def net(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), *layers)


def hooked(hook: Any, state: Any = None) -> DDP:
    model = DDP(net())
    model.register_comm_hook(state, hook)
    return model


def other_hook(state, bucket):
    return default_hooks.allreduce_hook(None, bucket)


def with_main_gradients() -> nn.Module:
    model = net()
    model[0].weight.main_grad = torch.zeros(2, 2)
    return model


def apart() -> Inelastic:
    made = known(DDP(net()), shares=True)
    made._carrier.state.set_apart([0])
    return made


KEPT: list[Any] = []


def inside() -> Inelastic:
    KEPT.append(DDP(net()))
    return known(KEPT[-1].module, shares=True)


def compiled(given: bool) -> Inelastic:
    model = DDP(net())
    KEPT.append(torch.compile(model, backend="eager"))
    return known(KEPT[-1] if given else model, shares=True)


CASES: dict[str, tuple[Any, str]] = {
    "ddp": (lambda: known(DDP(net()), shares=True), ""),
    "inside": (inside, "was given the module inside DistributedDataParallel(Sequential)"),
    "compiled": (lambda: compiled(False), "DistributedDataParallel(Sequential) is compiled"),
    "compiled, given": (lambda: compiled(True), "DistributedDataParallel(Sequential) is compiled"),
    "compiled inside": (
        lambda: known(DDP(torch.compile(net(), backend="eager")), shares=True),
        "",
    ),
    "half": (lambda: known(hooked(default_hooks.fp16_compress_hook), shares=True), ""),
    "shares": (lambda: known(net(), shares=True), ""),
    "not yet": (lambda: known(net()), ""),
    "no shares": (lambda: known(net(), shares=False), "did not go through job.shares"),
    "draws": (lambda: known(net(), shares=True, draws=True), "from job.iterate()"),
    "noted": (lambda: _noted(), "it was seen"),
    "apart": (apart, "model.0.weight exist on one rank only"),
    "main_grad": (lambda: known(with_main_gradients()), ".main_grad"),
    "unused": (
        lambda: known(DDP(net(), find_unused_parameters=True), shares=True),
        "(Sequential, find_unused_parameters=True)",
    ),
    "static": (lambda: known(DDP(net(), static_graph=True), shares=True), "static_graph=True"),
    "hook": (lambda: known(hooked(other_hook), shares=True), "communication hook other_hook"),
    "sync": (
        lambda: known(net(nn.SyncBatchNorm(2)), shares=True),
        "model.1 is a SyncBatchNorm",
    ),
    "sparse": (
        lambda: known(DDP(net(nn.Embedding(4, 2, sparse=True))), shares=True),
        "model.1 has sparse gradients",
    ),
    "batches": (lambda: known(DDP(net()), loads=True), "job.batches hands out the batches of this"),
}


def _noted() -> Inelastic:
    made = known(DDP(net()), shares=True)
    made.note("it was seen")
    made.note("this too")
    return made


@pytest.mark.parametrize("name", CASES)
def test_reasons(name):
    make, says = CASES[name]
    reason = make().reason()
    KEPT.clear()
    assert (says in reason) and bool(says) == bool(reason), reason


def test_zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = DDP(net())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1)
    state = TrainingState({"model": model, "optimizer": optimizer})
    made = Inelastic(SimpleNamespace(rank=0, state=state))  # type: ignore[arg-type]
    assert "ZeRO keeps an optimizer's state" in made.reason()


# -- what is a rank's own --------------------------------------------------------------------------


def apart_values(**more: Any) -> tuple[private.Apart, list[str]]:
    """And what it says was changed."""
    changed: list[str] = []
    return private.of_values(private.Tree(**more), changed.append), changed


def settle(apart: private.Apart, ours: Any, theirs: Any) -> None:
    apart.settle(plain.encode(ours), plain.encode(theirs))


def now(apart: private.Apart, ours: Any) -> Any:
    return plain.decode(apart.now(plain.encode(ours)))


def test_what_is_equal_stays_common():
    apart, changed = apart_values(label="meter")
    settle(apart, {"count": 1, "sum": 2.0}, {"count": 1, "sum": 3.0, "more": 5})
    assert now(apart, {"count": 2, "sum": 2.0}) == {"count": 2, "sum": 3.0, "more": 5}
    assert not changed


def test_groups_are_told_apart_by_number():
    apart, changed = apart_values(numbered=True)
    settle(apart, {"adam": [{"lr": 1.0}, {"lr": 2.0}]}, {"adam": [{"lr": 1.0}, {"lr": 3.0}]})
    assert now(apart, {"adam": [{"lr": 0.5}, {"lr": 2.0}]}) == {"adam": [{"lr": 0.5}, {"lr": 3.0}]}
    assert now(apart, {"adam": [{"lr": 0.5}, {"lr": 1.0}]}) == {"adam": [{"lr": 0.5}, {"lr": 1.0}]}
    assert changed == ["adam.1.lr"]


def test_what_the_script_sets_back_is_set_back_for_all():
    apart, changed = apart_values(label="meter")
    settle(apart, {"n": 2, "sum": 2.0}, {"n": 2, "sum": 3.0})
    assert now(apart, {"n": 0, "sum": 0.0}) == {"n": 0, "sum": 0.0} and changed == ["meter.sum"]


def test_a_list_is_one_value():
    apart, changed = apart_values(label="mine")
    settle(apart, {"a": [1, 2]}, {"a": [1, 3]})
    assert now(apart, {"a": [1, 2], "b": 1}) == {"a": [1, 3], "b": 1} and not changed
    assert now(apart, {"a": [1, 2, 3]}) == {"a": [1, 2, 3]} and changed == ["mine.a"]
    settle(apart, [1], [2])
    assert now(apart, [1]) == [2] and now(apart, [3]) == [3] and changed == ["mine.a", "mine"]


def test_what_one_has_alone():
    apart, _ = apart_values()
    settle(apart, {"a": 1, "b": 2}, {"b": 2})
    assert now(apart, {"a": 1, "b": 3}) == {"b": 3}


def test_nothing_is_made_anew_where_nothing_differs():
    (apart, _), ours = apart_values(), plain.encode({"a": 1})
    settle(apart, {"a": 1}, {"a": 1})
    assert apart.now(ours) is ours
    settle(apart, {"a": 1}, {"a": 2})
    assert apart.now(ours) is apart.now(ours)


def test_buffers_one_by_one():
    changed: list[str] = []
    apart = private.of_buffers(lambda: [2, 3, 1], changed.append)
    apart.settle(b"aabbbc", b"aaxbbc")
    assert apart.now(b"zzbbby") == b"zzxbby" and not changed
    assert apart.now(b"zzwbby") == b"zzwbby" and changed
    with pytest.raises(RuntimeError, match="the record has 5 bytes of private tensors"):
        apart.settle(b"aabbbc", b"aabbb")
