"""Which DDPs can be made again, and what is made again of one. A group of one rank does."""

from __future__ import annotations

import functools
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from taskd.worker.communication import buckets, comm_hooks, static_graph
from taskd.worker.state import plain


@pytest.fixture(scope="module", autouse=True)
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def hook(state, bucket):
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


def remembering():
    errors = {}

    def with_feedback(state, bucket):
        errors[bucket.index()] = bucket.buffer()
        return hook(state, bucket)

    return with_feedback


def scaled(factor, inner):
    def scaling(state, bucket):
        return inner(state, bucket)

    scaling.factor = factor
    return lambda state, bucket: scaling(factor, bucket)


class Compressor:
    def __init__(self) -> None:
        self.errors = {}

    def hook(self, state, bucket):
        return hook(state, bucket)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (hook, None),
        (default_hooks.allreduce_hook, None),
        (default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook), None),
        (scaled(0.5, hook), None),
        (remembering(), "keeps its state in the variable errors"),
        (scaled(0.5, remembering()), "keeps its state in the variable errors"),
        (Compressor().hook, "keeps its state in a Compressor"),
        (functools.partial(hook), None),
    ],
)
def test_a_hook_with_a_state_of_its_own_is_refused(given, why):
    model = DDP(nn.Linear(2, 2))
    model._comm_hooks.append((given, None))
    said = buckets.unsupported(model)
    assert said is None if why is None else (why in said and "must have no state" in said)


def learnt(ddp: DDP) -> tuple[object, ...]:
    """What a reducer has learnt, as far as torch shows it."""
    data = ddp._get_ddp_logging_data()
    used = ddp.reducer._get_local_used_map().tolist() if ddp.static_graph else None
    return data.get("has_rebuilt_buckets"), data.get("rebuilt_per_bucket_param_indices"), used


class Twice(nn.Module):
    """Its first layer's gradient comes twice, from backwards inside the backward; one parameter is
    not used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = checkpoint(self.first, x, use_reentrant=True)
        return self.second(x)


@pytest.mark.parametrize("backwards", [0, 1, 2, 3])
def test_a_static_graph_is_learnt_again(backwards):
    """Whenever it is made again, the reducer goes on as it would have done."""

    def run(again: bool) -> tuple[object, ...]:
        torch.manual_seed(0)
        ddp = DDP(Twice(), static_graph=True, bucket_cap_mb=1e-5)
        firings, order = buckets.listener(ddp), None
        assert buckets.unsupported(ddp) is None
        x = torch.ones(1, 2, requires_grad=True)
        for step in range(4):
            if again and step == backwards:
                buckets.rebuild(ddp, order)
                firings.put(order)
            firings.again()
            ddp(x).sum().backward()
            order = firings.completed() or order
        ddp(x)  # lays the buckets anew if that has not been done
        ddp.reducer._set_ddp_runtime_logging_sample_rate(1)
        ddp(x)
        assert order[0] == 2 and sorted(order[1:]) == [1, 1, 2, 2, 3, 4]
        return learnt(ddp), [p.grad is None or p.grad.tolist() for p in ddp.parameters()]

    assert run(True) == run(False)


def test_backwards_of_a_failed_attempt_do_not_count():
    ddp = DDP(nn.Linear(2, 2), static_graph=True)
    firings = buckets.listener(ddp)
    for _ in range(2):
        firings.again()
        ddp(torch.ones(1, 2)).sum().backward()
    assert firings.completed()[0] == 1 and firings.listening


def test_a_torch_without_these_names_is_named(monkeypatch):
    monkeypatch.setattr(static_graph, "REDUCER", ("_no_such_name",))
    why = buckets.unsupported(DDP(nn.Linear(2, 2), static_graph=True))
    assert "lacks Reducer._no_such_name" in why and "static_graph" in why
    monkeypatch.setattr(buckets, "REDUCER", ("_nor_this",))
    assert "lacks Reducer._nor_this" in buckets.unsupported(DDP(nn.Linear(2, 2)))


def test_the_layout_stays_after_a_rebuild():
    """The next backward may be in another order: an undisturbed run does not look at it."""
    ddp = DDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), bucket_cap_mb=1e-5)
    buckets.rebuild(ddp, [0, 2, 1, 3])
    for _ in range(3):
        ddp(torch.ones(1, 2)).sum().backward()
    rebuilt, layout, _ = learnt(ddp)
    assert rebuilt and layout.replace(",", "").split() == ["0", "2", "1", "3"]


def test_no_hook_of_the_script_runs_in_a_rebuild():
    net = nn.Linear(2, 2)
    ddp, called = DDP(net), []
    net.weight.register_hook(lambda gradient: called.append(1))
    net.weight.register_post_accumulate_grad_hook(lambda parameter: called.append(2))
    buckets.rebuild(ddp, [1, 0])
    assert called == []


class Counted:
    def __init__(self) -> None:
        self.count = 0


class Recorded(Counted):
    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, values):
        self.count = values["count"]


def test_states_of_hooks_that_can_be_recorded():
    powersgd = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2)
    local = post_localSGD_hook.PostLocalSGDState(None, dist.group.WORLD, 4)
    recorded = Recorded()
    ddps = []
    for given, state in (
        (powerSGD_hook.powerSGD_hook, powersgd),
        (post_localSGD_hook.post_localSGD_hook, local),
        (hook, recorded),
        (hook, recorded),
    ):
        ddps.append(DDP(nn.Linear(2, 2)))
        ddps[-1].register_comm_hook(state, given)
        assert buckets.unsupported(ddps[-1]) is None
    found = comm_hooks.states(ddps)
    assert len(found) == 3 and recorded in found.values()
    assert comm_hooks.diverging(ddps) and not comm_hooks.diverging(ddps[:1])


def test_states_of_hooks_that_cannot(monkeypatch):
    assert "give it a subgroup" in comm_hooks.unsupported(
        "x", post_localSGD_hook.PostLocalSGDState(None, None, 4)
    )
    model = DDP(nn.Linear(2, 2))
    model.register_comm_hook(Counted(), hook)
    assert "hook has its own state, a Counted: give that a state_dict" in buckets.unsupported(model)
    state = powerSGD_hook.PowerSGDState(None)
    monkeypatch.setattr(type(state), "__slots__", [*type(state).__slots__, "momentum"])
    assert "is not what taskd knows: momentum" in comm_hooks.unsupported("x", state)


def test_powersgd_goes_on_as_it_would_have():
    """From a record of the state, in another process: from errors, low-rank factors and random
    numbers."""

    def run(taken_up: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        ddp = DDP(nn.Linear(16, 16))
        state = powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, warm_start=False)
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        buckets.rebuild(ddp, None)
        ready, order, found = buckets.listener(ddp), None, []
        for step in range(6):
            if taken_up and step == 4:
                (recorded,) = comm_hooks.states([ddp]).values()
                data = plain.encode(recorded.state_dict())
                state.__init__(None, start_powerSGD_iter=2, warm_start=False)
                recorded.load_state_dict(plain.decode(data))
                assert state.iter == 4
                buckets.rebuild(ddp, order)
            ddp.zero_grad()
            ddp(torch.randn(4, 16)).square().sum().backward()
            found.append(ddp.module.weight.grad.clone())
            order = ready.completed() or order
            comm_hooks.leave()
        assert list(comm_hooks.seen())
        return found

    assert all(torch.equal(a, b) for a, b in zip(run(True), run(False), strict=True))


def test_a_hook_that_is_cut_has_ended_before_anything_is_restored():
    state = powerSGD_hook.PowerSGDState(None)
    started, ended = torch.futures.Future(), []

    class Bucket:
        def buffer(self):
            return torch.ones(1)

    def slow(state, bucket):
        return started.then(lambda _: ended.append(1))

    comm_hooks.followed(slow, state)(state, Bucket())
    threading.Timer(0.2, lambda: started.set_exception(RuntimeError("cut"))).start()
    comm_hooks.leave()
    assert ended == [1]


def test_what_else_is_refused():
    model = DDP(nn.Linear(2, 2))
    assert buckets.unsupported(model) is None
    model._delay_all_reduce_params = [model.module.weight]
    assert "delay_all_reduce" in buckets.unsupported(model)


def test_buffers_that_came_later_are_not_broadcast_after_a_rebuild():
    model = DDP(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    before = list(model.modules_buffers)
    model.module[0].register_buffer("late", torch.zeros(1))
    buckets.rebuild(model, None)
    assert [id(b) for b in model.modules_buffers] == [id(b) for b in before] and len(before) == 3


def test_the_order_is_replayed_with_sparse_gradients():
    net = nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 2))
    model = DDP(net, bucket_cap_mb=1e-5)
    buckets.rebuild(model, [2, 1, 0])
    assert all(p.grad is None for p in net.parameters())
    net(torch.tensor([1])).sum().backward()
    model(torch.tensor([1, 2])).sum().backward()
    assert net[0].weight.grad.is_sparse


def test_every_rank_of_a_group_takes_the_order_of_its_first():
    cpu = torch.device("cpu")
    assert buckets.agreed([], [], cpu) == []
    ddps = [DDP(nn.Linear(2, 2)) for _ in range(3)]
    assert buckets.agreed(ddps, [None, [2, 0, 1], None], cpu) == [None, [2, 0, 1], None]


def test_an_order_that_was_taken_back_is_heard_again():
    ddp = DDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    ready = buckets.ReadyOrder(ddp)
    for _ in range(2):
        ddp(torch.ones(1, 2)).sum().backward()
        assert ready.completed() == [3, 2, 1, 0]
        ready.again()
        ddp(torch.ones(1, 2)).sum().backward()
        assert ready.completed() is None  # nobody listens any more
        ready.listen()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("order", [None, [1, 0, 3, 2]])
def test_gradients_that_wait_stay(view, order):
    ddp = DDP(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), gradient_as_bucket_view=view)
    for _ in range(3):
        ddp(torch.ones(1, 2)).sum().backward()
        before = [p.grad.clone() for p in ddp.parameters()]
        buckets.rebuild(ddp, order)
        assert all(torch.equal(p.grad, b) for p, b in zip(ddp.parameters(), before, strict=True))
