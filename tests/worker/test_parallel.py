"""What is cleared of a failed step of FSDP2 and of pipelines, and the private names that this
takes."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn

from taskd.worker.communication import pipelines
from taskd.worker.discovery import unsupported
from taskd.worker.repair import trials, verify
from taskd.worker.state import fsdp2, gradients, sharded, zero
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import NotProtectable, TrainingState


@pytest.fixture(autouse=True)
def world():
    gc.collect()  # schedules of the test before
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Module:
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    fully_shard(model[0])
    return fully_shard(model)


def test_this_torch_has_what_fsdp2_is_reset_by():
    model = net()
    assert fsdp2.lacking([model]) == []
    model(torch.ones(1, 4)).sum().backward()
    assert fsdp2.lacking([model]) == [] and unsupported.reason([model]) is None


def test_a_torch_without_these_names_is_named(monkeypatch):
    for names in ("GROUP", "GROUP_BY_TORCH"):  # of one torch and of a later one
        monkeypatch.setattr(fsdp2, names, (*getattr(fsdp2, names), "_no_such_name"))
    why = unsupported.reason([net()])
    assert "lacks FSDPParamGroup._no_such_name" in why and torch.__version__ in why


@pytest.mark.parametrize("failure", ["forward", "backward", "between", "accumulating"])
def test_a_failed_step_leaves_nothing_behind(failure):
    """The same numbers follow as without it."""

    def steps(fail: bool) -> list[float]:
        model, losses = net(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(4):
            if fail and step == 2:
                attempt(model, failure)
                fsdp2.reset([model])
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4) * step).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    assert steps(True) == steps(False)


def attempt(model: nn.Module, failure: str) -> None:
    if failure == "accumulating":  # its gradient would wait for the next backward's
        model.set_requires_gradient_sync(False)
        model(torch.ones(2, 4)).sum().backward()
        model.set_requires_gradient_sync(True)
        return

    class Failure(Exception):
        pass

    def fail(*_: object) -> None:
        raise Failure

    if failure == "forward":
        handle = model[1].register_forward_hook(fail)
        with pytest.raises(Failure):
            model(torch.ones(2, 4))
        handle.remove()
        return
    out = model[0](torch.ones(2, 4)) if failure == "between" else model(torch.ones(2, 4))
    if failure == "backward":
        out.register_hook(fail)
        with pytest.raises(Failure):
            out.sum().backward()


def test_an_evaluation_leaves_shards():
    model = net()
    model(torch.ones(1, 4)).sum().backward()
    with torch.no_grad():
        model(torch.ones(1, 4))
    fsdp2.settle([model])
    assert all(sharded.is_sharded(p) for p in model.parameters())


def test_tensor_parallel_modules_in_a_ddp_are_refused_by_name():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    model = parallelize_module(nn.Sequential(nn.Linear(4, 4)), mesh["tp"], {"0": ColwiseParallel()})
    assert unsupported.reason([model]) is None
    ddp = nn.parallel.DistributedDataParallel(model, device_mesh=mesh["dp"])
    assert "is tensor parallel inside DDP" in unsupported.reason([ddp.module])


def test_gradients_of_which_a_sum_is_still_to_come():
    """As those of a norm under sequence parallelism; and state made of them."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate

    mesh = init_device_mesh("cpu", (1,))
    net = nn.Module()
    net.weight = nn.Parameter(DTensor.from_local(torch.ones(4), mesh, [Replicate()]))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    partial = DTensor.from_local(torch.arange(4.0), mesh, [Partial()])
    net.weight.grad = optimizer.state[net.weight]["momentum_buffer"] = partial
    state, watched = TrainingState({"net": net, "optimizer": optimizer}), Gradients([optimizer])
    watched.watch(state.parameters())
    ((_, name, _),) = gradients.read(content := watched.take(0).kept())[0]
    assert name == "grad Psum"
    structure = state.structure()
    net.weight.grad = None
    optimizer.state[net.weight].clear()
    watched.put(content)
    state.conform(structure)
    assert net.weight.grad.placements == (Partial(),)
    assert torch.equal(sharded.local(net.weight.grad), torch.arange(4.0))
    assert optimizer.state[net.weight]["momentum_buffer"].placements == (Partial(),)


def zero_optimizer(**more: object) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1, **more)


def test_the_share_of_a_rank_is_private_and_restored():
    def steps(restore: bool) -> torch.Tensor:
        model, optimizer = zero_optimizer()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
        state = TrainingState({"model": model, "optimizer": optimizer, "scheduler": scheduler})
        assert list(state.optimizers) == ["optimizer", "optimizer.optim"] and state.sharded
        for step in range(4):
            if step == 2:
                state.refresh()
                kept = {name: c.kept() for name, c in state.parts.take().items()}
                structure = state.structure()
                assert (
                    len(state.private) == 6 and len(state.replicated) == 2
                )  # steps and moments of two
                if restore:
                    optimizer.optim.state.clear()
                    optimizer.param_groups[0]["lr"] = 7.0
                    state.conform(structure)
                    state.parts.put(kept)
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            scheduler.step()
        return model.weight.detach()

    assert torch.equal(steps(True), steps(False))


def test_which_zero_optimizers_are_refused_by_name(monkeypatch):
    model, optimizer = zero_optimizer()
    monkeypatch.setattr(zero, "NEEDED", (*zero.NEEDED, "_no_such_name"))
    with pytest.raises(NotProtectable, match="lacks ZeroRedundancyOptimizer._no_such_name"):
        TrainingState({"model": model, "optimizer": optimizer})
    model, optimizer = zero_optimizer(overlap_with_ddp=True)
    with pytest.raises(NotProtectable, match="overlap_with_ddp=True"):
        TrainingState({"model": model, "optimizer": optimizer})


def test_fsdp1_is_refused_by_name():
    class FullyShardedDataParallel(nn.Module):
        pass

    model = nn.Sequential(FullyShardedDataParallel())
    assert unsupported.reason([model]) == "0 is an FSDP1 module: use fully_shard (FSDP2)"


def test_a_shard_and_what_is_made_of_one():
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    model = net()
    weight = model[0].weight
    assert sharded.is_sharded(weight) and not sharded.is_sharded(sharded.local(weight))
    made = sharded.like(weight, torch.zeros_like(sharded.local(weight)))
    assert made.placements == weight.placements and made.shape == weight.shape
    assert sharded.otherwise(made, weight) == ""
    for placement, text in ((Replicate(), "R"), (Partial(), "Psum"), (Shard(1), "S1")):
        other = DTensor.from_local(torch.ones(4, 4), weight.device_mesh, [placement])
        assert sharded.otherwise(other, weight) == text
        again = sharded.like(weight, torch.ones(4, 4), text)
        assert again.placements == (placement,) and again.shape == weight.shape
    with pytest.raises(ValueError, match="one is sharded, the other is not"):
        sharded.otherwise(torch.zeros(4, 4), weight)
    with pytest.raises(ValueError, match=r"part of shape \(1,\)"):
        sharded.like(weight, torch.zeros(1))
    assert sharded.place(weight) == ((0, 0), (0,))
    plain = torch.zeros(1)
    assert sharded.place(plain) == ((0,), ())
    assert sharded.local(plain) is plain and sharded.like(plain, plain) is plain


class Counting(nn.Linear):
    """Counts its forwards."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        torch.rand(1)
        return super().forward(x)


def pipeline(name: str, **given: object) -> tuple[object, Counting]:
    from torch.distributed import pipelining

    net = Counting()
    stage = pipelining.PipelineStage(net, 0, 1, torch.device("cpu"), **given)
    kind = getattr(pipelining, name)
    several = issubclass(kind, pipelining.schedules.PipelineScheduleMulti)
    return kind([stage] if several else stage, 2, loss_fn=lambda out, x: (out - x).sum()), net


@pytest.mark.parametrize("name", ["Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_schedules_are_found_and_reset(name):
    assert pipelines.Pipelines().lacking() == []
    schedule, net = pipeline(name)
    found, state = pipelines.Pipelines(), TrainingState({"model": net})
    assert found.lacking() == [] and found._living() == [schedule]
    assert found.state_dict() == [(False, False)]
    x = torch.ones(4, 4)
    schedule.step(x, target=x, losses=[])
    assert found.state_dict() == [(True, True)]
    trial = int(net.calls) - 2  # 1 where this torch has the module itself tell the shapes
    schedule._internal_losses.append(x)  # as a step that failed leaves it
    random = RandomState(torch.device("cpu"))
    for _ in range(2):  # a second repair before the first has learnt again
        found.reset(lambda: trials.unchanged(state, random))
        assert not schedule._internal_losses and found.state_dict() == [(True, True)]
    losses: list[torch.Tensor] = []
    schedule.step(x, target=x, losses=losses)
    assert len(losses) == 2 and net.calls == 4 + trial  # what it has learnt again was not counted
    # a record of before the first step: this time it counts
    found.load_state_dict([(False, False)])
    found.reset(lambda: trials.unchanged(state, random))
    schedule.step(x, target=x, losses=losses)
    assert net.calls == 6 + 2 * trial


@pytest.mark.parametrize("name", ["Schedule1F1B", "ScheduleInterleaved1F1B"])
def test_shapes_that_were_given_are_not_inferred(name):
    x = torch.ones(4, 4)
    schedule, net = pipeline(name, input_args=x[:2], output_args=x[:2])
    found, random = pipelines.Pipelines(), RandomState(torch.device("cpu"))
    state = TrainingState({"model": net})
    schedule.step(x, target=x, losses=[])
    before = int(net.calls)
    found.reset(lambda: trials.unchanged(state, random))
    schedule.step(x, target=x, losses=[])
    assert net.calls == before + 2


def test_a_pipeline_that_has_begun(monkeypatch):
    """Where torch does not show which shapes were given, that is refused by name."""
    schedule, net = pipeline("Schedule1F1B")
    monkeypatch.setattr(pipelines, "LEARN", "_no_such_name")
    monkeypatch.setattr(pipelines, "SHAPES", ("submod", "submod"))
    assert unsupported.reason([net]) is None
    x = torch.ones(4, 4)
    schedule.step(x, target=x, losses=[])
    assert "a pipeline has made a step already" in unsupported.reason([net])


@pytest.mark.parametrize("stages", [False, True])
def test_forwards_of_stages_are_not_compared(stages):
    """The ranks of a pipeline wait for each other within a forward."""
    schedule = pipeline("Schedule1F1B") if stages else None
    net = nn.Linear(2, 2)
    session = SimpleNamespace(
        rank=0, state=TrainingState({"model": net}), pipelines=pipelines.Pipelines()
    )
    plan = SimpleNamespace(compared=(0, 1))
    forward = verify.Forward(session, plan, lambda reason: None)
    assert bool(net._forward_hooks) != stages and (schedule is not None) == stages
    forward.stop()


def test_what_a_torch_without_pipeline_names_lacks(monkeypatch):
    schedule, _ = pipeline("ScheduleInterleaved1F1B")
    monkeypatch.setattr(pipelines, "SCHEDULE", ("_no_such_name",))
    monkeypatch.setattr(pipelines, "STAGE", ("_nor_this",))
    missing = pipelines.Pipelines().lacking()
    assert missing == ["PipelineStage._nor_this", "ScheduleInterleaved1F1B._no_such_name"]
    assert schedule is not None


def test_what_a_trial_leaves():
    net = Counting()
    net.note = 1
    net.register_buffer("none", None)
    state, random = TrainingState({"model": net}), RandomState(torch.device("cpu"))
    before, calls = random.snapshot(), net.calls
    with trials.unchanged(state, random):
        net(torch.ones(1, 4))
        net.note = 2
        net.register_buffer("later", torch.ones(1))
    assert net.calls is calls and calls == 0 and net.note == 1 and random.snapshot() == before
    assert list(net._buffers) == ["calls", "none"]
