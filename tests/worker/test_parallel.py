"""What is cleared of a failed step of FSDP2 and of pipelines, and the private names that this
takes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from taskd.worker import parallel
from taskd.worker.parallel import fsdp2, pipelines, sharded


@pytest.fixture(autouse=True)
def world():
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
    assert fsdp2.lacking([model]) == [] and parallel.unsupported([model]) is None


def test_a_torch_without_these_names_is_named(monkeypatch):
    monkeypatch.setattr(fsdp2, "GROUP", (*fsdp2.GROUP, "_no_such_name"))
    why = parallel.unsupported([net()])
    assert "lacks FSDPParamGroup._no_such_name" in why and torch.__version__ in why


@pytest.mark.parametrize("failure", ["forward", "backward", "between"])
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


def test_fsdp1_is_refused_by_name():
    class FullyShardedDataParallel(nn.Module):
        pass

    model = nn.Sequential(FullyShardedDataParallel())
    assert parallel.unsupported([model]) == "0 is an FSDP1 module: use fully_shard (FSDP2)"


def test_a_shard_and_what_is_made_of_one():
    model = net()
    weight = model[0].weight
    assert sharded.is_sharded(weight) and not sharded.is_sharded(sharded.local(weight))
    made = sharded.like(weight, torch.zeros_like(sharded.local(weight)))
    assert made.placements == weight.placements and made.shape == weight.shape
    assert not sharded.differently_placed(made, weight)
    assert sharded.differently_placed(torch.zeros(4, 4), weight)
    with pytest.raises(ValueError, match=r"part of shape \(1,\)"):
        sharded.like(weight, torch.zeros(1))
    assert sharded.place(weight) == ((0, 0), (0,))
    plain = torch.zeros(1)
    assert sharded.place(plain) == ((0,), ())
    assert sharded.local(plain) is plain and sharded.like(plain, plain) is plain


def test_schedules_are_found_and_reset():
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    assert pipelines.Pipelines().lacking() == []
    stage = PipelineStage(nn.Linear(4, 4), 0, 1, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2, loss_fn=lambda out, wanted: (out - wanted).sum())
    found = pipelines.Pipelines()
    assert found.lacking() == [] and found._living() == [schedule]
    x = torch.ones(4, 4)
    schedule.step(x, target=x, losses=[])
    schedule._internal_losses.append(x)  # as a step that failed leaves it
    found.reset()
    assert not schedule._internal_losses and not schedule._stage_forward_initialized
    losses: list[torch.Tensor] = []
    schedule.step(x, target=x, losses=losses)
    assert len(losses) == 2
