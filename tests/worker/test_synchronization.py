"""What shares take of torch: private names, and the order of hooks."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from taskd.worker.elastic import synchronization
from taskd.worker.elastic.inelastic import of_ddp
from taskd.worker.elastic.sums import Sums
from taskd.worker.elastic.synchronization import Synchronization
from taskd.worker.state import fsdp2


@pytest.fixture(autouse=True)
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))


def test_this_torch_has_the_names_of_ddp(monkeypatch):
    model = DDP(net())
    assert synchronization.lacking([model]) == [] and not list(of_ddp(model))
    monkeypatch.setattr(synchronization, "SYNC", "_no_such_name")
    assert synchronization.lacking([model]) == ["DDP._no_such_name"]
    assert list(of_ddp(model)) == [f"torch {torch.__version__} lacks DDP._no_such_name"]


def test_ddp_synchronizes_buffers_by_that_method():
    model, called = DDP(net()), []
    model.__dict__[synchronization.SYNC] = lambda: called.append(1)
    model(torch.ones(2, 2)).sum().backward()
    with model.no_sync():
        model(torch.ones(2, 2)).sum().backward()
    model(torch.ones(2, 2)).sum().backward()
    assert called == [1, 1]  # the forward after one under no_sync() does not
    names = {id(b) for b in getattr(model, synchronization.BUFFERS)}
    assert names == {id(b) for b in model.module.buffers()}


@pytest.mark.parametrize("views", [False, True])
def test_ddp_reads_gradients_after_the_hooks_of_parameters(views):
    model = DDP(net(), gradient_as_bucket_view=views)

    def fill(parameter: torch.Tensor) -> None:
        parameter.grad.fill_(7.0)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(fill)
    for _ in range(3):  # the buckets are laid out anew meanwhile
        model(torch.randn(3, 2)).sum().backward()
        assert all((p.grad == 7.0).all() for p in model.parameters())


def test_a_gradient_that_is_added_in_place_counts_one_version():
    weight = nn.Parameter(torch.ones(2))
    (weight * 2).sum().backward()
    grad, version = weight.grad, weight.grad._version
    (weight * 3).sum().backward()
    assert weight.grad is grad and grad._version == version + 1
    weight.grad.zero_()
    assert grad._version == version + 2


def test_minus_zero_changes_nothing():
    numbers = torch.tensor([0.0, -0.0, 1.5, -2.0, float("inf")])
    found = torch.full_like(numbers, -0.0).add_(numbers)
    assert torch.equal(torch.signbit(found), torch.signbit(numbers)) and torch.equal(found, numbers)


def test_only_the_last_share_communicates_whatever_the_script_asks_for():
    model = DDP(net(), broadcast_buffers=False)
    averaged: list[int] = []

    def hook(state, bucket):
        averaged.append(1)
        made = torch.futures.Future()
        made.set_result(bucket.buffer())
        return made

    model.register_comm_hook(None, hook)
    made = Synchronization([model], {})
    made.install(0, {1: 0}, lambda rank: pytest.fail("nobody's buffers are asked for"))
    made.begin()
    for share in range(3):
        made.share(share == 0, share == 2)
        for wanted in (False, True):
            model.require_backward_grad_sync = wanted  # nanoGPT's way
            model(torch.randn(3, 2)).sum().backward()
            assert model.require_backward_grad_sync == wanted
            assert made.averages(model) == (wanted and share == 2)
        assert len(averaged) == (share == 2)
    made.over()
    made.remove()
    assert not model._forward_pre_hooks and not model._forward_hooks
    assert synchronization.SYNC not in vars(model)


def test_buffers_of_all_shares_are_those_of_the_first_rank():
    """Forward by forward, and the flag of DDP is as its own forward leaves it."""
    model = DDP(net())
    made = Synchronization([model], {})
    made.install(0, {1: 0}, lambda rank: pytest.fail("nobody's buffers are asked for"))
    made.begin()
    norm, seen = model.module[1], []
    norm.register_forward_pre_hook(lambda *_: seen.append(norm.running_mean[0].item()))
    for share, mean in enumerate((5.0, 6.0)):
        made.share(share == 0, share == 1)
        norm.running_mean.fill_(mean)
        for _ in range(2):
            model(torch.zeros(2, 2))
            assert model.require_forward_param_sync
        made.over()
    first, second = seen[:2]
    assert seen[2:] == [first, second] and first == 5.0


def test_this_torch_has_the_names_of_hsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("replicate", "shard"))
    hsdp, fsdp = fully_shard(net(), mesh=mesh), fully_shard(net())
    (group,) = fsdp2.replicated([hsdp])
    assert getattr(group, fsdp2.REDUCES) is True and fsdp2.replicated([fsdp]) == []
    assert fsdp2.managed([hsdp]) == {id(p) for p in hsdp.parameters()}
    made = Synchronization([], {"model": hsdp})
    made.install(0, {1: 0}, lambda rank: pytest.fail("there are no DDPs"))
    made.begin()
    for last in (False, True):
        made.share(not last, last)
        hsdp.set_requires_all_reduce(True)
        hsdp(torch.ones(2, 2)).sum().backward()
        assert getattr(group, fsdp2.REDUCES) is last
        assert (hsdp[0].weight.grad is not None) is last
    made.over()
    made.remove()
    assert getattr(group, fsdp2.REDUCES) is True


def test_hooks_are_made_for_what_is_trained_and_removed():
    model = DDP(net())
    made = Sums([model], Synchronization([model], {}))
    model.module[0].bias.requires_grad_(False)
    made.watch(model.parameters(), set())
    have = {n: bool(p._post_accumulate_grad_hooks) for n, p in model.module.named_parameters()}
    assert have == {"0.weight": True, "0.bias": False, "1.weight": True, "1.bias": True}
    model.module[0].bias.requires_grad_(True)
    made.watch(model.parameters(), {id(model.module[0].weight)})
    have = {n: bool(p._post_accumulate_grad_hooks) for n, p in model.module.named_parameters()}
    assert have == {"0.weight": False, "0.bias": True, "1.weight": True, "1.bias": True}
    made.remove()
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
