"""What ranks do in a shrunk job, see test_shrunk.py; each function runs in every rank."""

from __future__ import annotations

import copy
import functools
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch.nn.parallel import DistributedDataParallel

from taskd.worker.communication import buckets, methods, shrunk_operators, transfer
from taskd.worker.repair import verify
from taskd.worker.state import replicas
from tests.worker.shrinking import LIMIT, Rank, net, refused, value

CPU = torch.device("cpu")


def own(job: Rank) -> None:
    group = dist.new_group([0, 2, 3])
    state = SimpleNamespace(
        replicated=[torch.full((9,), i, dtype=torch.uint8) for i in range(3)],
        layout=lambda: 7,
        replicas=replicas.Replicas(),
        apart=[],
    )
    model = DistributedDataParallel(net(), process_group=group) if job.rank != 1 else None
    for away in (), (0,), (1, 3), (0, 2, 3), ():
        if not job.rebuild(*away):
            continue
        present = job.communicators.present
        assert present == tuple(r for r in range(4) if r not in away)
        assert job.communicators.away == set(away) and dist.get_world_size() == 4
        assert replicas.most(10 + job.rank, present) == 10 + max(present)
        assert replicas.equal([b"same"], present) == [True]
        if len(present) > 1:
            mine = f"loop {job.rank == present[-1]}"
            assert replicas.equal([b"same", mine.encode()], present) == [True, False]
            said = replicas.who(mine, present)
            assert f"ranks [{present[-1]}]: loop True" in said and "loop False" in said
        # the set's name, 0, may be that of a rank that is away
        assert replicas.compare(state, job.rank, 0, present) is None
        one = copy.copy(state)
        one.replicated = [*state.replicated[:2], state.replicated[2] + (job.rank == present[-1])]
        found = replicas.compare(one, job.rank, 0, present)
        assert (found is None) == (len(present) == 1) and (found is None or found.apart == [2])
        if len(present) > 1:
            hand_over(job, present[-1], present[0])
        if job.rank in (0, 2, 3):
            order = [job.rank] if job.rank == [r for r in present if r != 1][0] else [99]
            (agreed,) = buckets.agreed([model], [order], CPU)
            assert agreed == [next(r for r in present if r != 1)]
    refused_nothing(job)


def hand_over(job: Rank, source: int, destination: int) -> None:
    rows = [torch.full((5,), source, dtype=torch.uint8), torch.zeros(3, dtype=torch.uint8)]
    if job.rank == source:
        transfer.give(rows, destination, CPU)
        verify._send(b"a forward", destination)
    elif job.rank == destination:
        got = [torch.empty_like(row) for row in rows]
        transfer.receive(got, source, CPU)
        assert all(torch.equal(a, b) for a, b in zip(got, rows, strict=True))
        assert verify._receive(source) == b"a forward"


def refused_nothing(job: Rank) -> None:
    """In a full job nothing of this is there."""
    left = {name for _, name in methods._replaced}
    assert not shrunk_operators._libraries and left <= {"split_group"}  # splitting.py stays
    rows = [torch.zeros(3) for _ in range(4)]
    dist.all_gather(rows, value(job))
    assert [row[0].item() for row in rows] == [1.0, 2.0, 3.0, 4.0]
    average = value(job)
    dist.all_reduce(average, dist.ReduceOp.AVG)
    assert average.tolist() == [2.5, 5.0, 7.5]


# -- the script's ----------------------------------------------------------------------------------


def roots_and_peers(job: Rank) -> None:
    group = dist.new_group([1, 2, 3])
    for away in (0,), (2,):
        if not job.rebuild(*away):
            continue
        present = job.communicators.present
        for handle in (None, group) if job.rank else (None,):
            members = [r for r in present if handle is None or r]
            for root in members:
                given = value(job)
                dist.broadcast(given, root, group=handle)
                assert given[0] == root + 1
                given = value(job)
                dist.reduce(given, root, group=handle)
                if job.rank == root:
                    assert given[0] == sum(r + 1 for r in members)
                given = funcol.broadcast(
                    value(job),
                    dist.get_group_rank(handle or dist.group.WORLD, root),
                    handle or dist.group.WORLD,
                )
                assert given[0] == root + 1
                objects = [f"of {job.rank}"]
                dist.broadcast_object_list(objects, root, group=handle)
                assert objects == [f"of {root}"]
            dist.barrier(group=handle)
            ring(job, members, handle)
        not_with(job, away[0])
    job.rebuild()
    refused_nothing(job)


def not_with(job: Rank, gone: int) -> None:
    for call, name in (
        (lambda: dist.broadcast(value(job), gone), "broadcast"),
        (lambda: dist.reduce(value(job), gone), "reduce"),
        (lambda: dist.send(value(job), gone), "send"),
        (lambda: dist.recv(value(job), gone), "recv"),
        (lambda: dist.irecv(value(job), gone), "recv"),
        (lambda: dist.broadcast_object_list([1], gone), "broadcast"),
        (lambda: dist.send_object_list([1], gone), "send"),
    ):
        refused(call, f"{name} with rank {gone}, which is away, over process group '0'")


def ring(job: Rank, members: list[int], group: Any) -> None:
    at = members.index(job.rank)
    after, before = members[(at + 1) % len(members)], members[at - 1]
    got = torch.zeros(3)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, value(job), after, group),
            dist.P2POp(dist.irecv, got, before, group),
        ]
    )
    for work in works:
        work.wait()
    assert got[0] == before + 1


def refusals(job: Rank) -> None:
    group = dist.new_group([0, 1, 3])
    if job.rebuild(3):
        x, many = value(job, 4), [torch.zeros(4) for _ in range(4)]
        wide = torch.zeros(16)
        calls = {
            "all_gather": lambda: dist.all_gather(many, x),
            "all_gather_into_tensor": lambda: dist.all_gather_into_tensor(wide, x),
            "gather": lambda: dist.gather(x, many if job.rank == 0 else None, 0),
            "scatter": lambda: dist.scatter(x, many if job.rank == 0 else None, 0),
            "reduce_scatter": lambda: dist.reduce_scatter(x, many),
            "reduce_scatter_tensor": lambda: dist.reduce_scatter_tensor(x, wide),
            "all_to_all": lambda: dist.all_to_all(many, list(many)),
            "all_to_all_single": lambda: dist.all_to_all_single(torch.zeros(4), x),
            "monitored_barrier": lambda: dist.monitored_barrier(),
            "recv without a source": lambda: dist.recv(x),
            "all_gather_coalesced": lambda: dist.all_gather_coalesced([[x] * 4], [x]),
        }
        for name, call in calls.items():
            refused(
                call,
                f"{name} over process group '0' of ranks [0, 1, 2, 3]",
                "ranks [3] are away",
                "all_reduce",
                "elastic-training",
            )
        by_others = {
            "all_gather": [
                lambda: dist.all_gather_object([None] * 4, "mine"),
                lambda: dist.gather_object("mine", [None] * 4 if job.rank == 0 else None),
            ],
            "scatter": [lambda: dist.scatter_object_list([None], ["a"] * 4)],
            "all_gather_into_tensor": [
                lambda: funcol.all_gather_tensor(x, 0, dist.group.WORLD).sum(),
                lambda: funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD).sum(),
            ],
            "reduce_scatter_tensor": [
                lambda: funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD).sum()
            ],
            "all_to_all_single": [
                lambda: funcol.all_to_all_single(x, None, None, dist.group.WORLD).sum()
            ],
        }
        for name, more in by_others.items():
            for call in more:
                refused(call, name, "over process group '0'", "ranks [3] are away")
        if job.rank < 2:
            refused(lambda: dist.all_gather(many[:3], x, group=group), "of ranks [0, 1, 3]")
        refused(lambda: dist.new_group([0, 1]), "cannot be made while ranks [3] are away")
        dist.all_reduce(x)  # all are together
        assert x[0] == 6.0 and dist.get_group_rank(dist.group.WORLD, 3) == 3
    job.rebuild()
    refused_nothing(job)
    assert dist.new_group([0, 1]) is not None


def averages(job: Rank) -> None:
    average = dist.ReduceOp.AVG
    if job.rebuild(1):
        total = 8.0  # of ranks 0, 2 and 3
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            x = value(job).to(dtype)
            dist.all_reduce(x, average)
            assert x.tolist() == [2.0, 4.0, 6.0] and x.dtype == dtype
        x = value(job).requires_grad_()
        dist.all_reduce(x, average)
        assert x[0] == total / 4
        for finish in (
            lambda work: work.wait(),
            lambda work: work.wait(timedelta(seconds=LIMIT)),
            lambda work: work.synchronize(),
            lambda work: work.get_future().wait(),
        ):
            x, y = value(job), value(job)
            works = [dist.all_reduce(t, average, async_op=True) for t in (x, y)]
            for work in works:
                finish(work)
                assert work.is_completed() and work.is_success()
            assert x[0] == y[0] == total / 4 and works[0].result()[0] is x
        works[0].wait()
        assert x[0] == total / 4  # once is enough
        got = []
        x = value(job)
        future = dist.all_reduce(x, average, async_op=True).get_future()
        future.then(lambda f: got.append(f.value()[0][0].item())).wait()
        assert got == [total / 4]
        several = [value(job), value(job)]
        dist.all_reduce_coalesced(several, average)
        assert [t[0].item() for t in several] == [total / 4] * 2
        for root in (0, 3):
            x = value(job)
            dist.reduce(x, root, average)
            assert job.rank != root or x[0] == total / 4
        handle, options = dist.group.WORLD, dist.AllreduceOptions()
        options.reduceOp = average
        for call in (
            lambda t: handle.allreduce([t], options),
            lambda t: handle.allreduce([t], average),
            lambda t: handle.allreduce(t, op=average),
        ):
            x = value(job)
            call(x).wait()
            assert x[0] == total / 4 and options.reduceOp == average
        x = value(job)
        assert funcol.all_reduce(x, "avg", handle)[0] == total / 4 and x[0] == job.rank + 1
        found = funcol.all_reduce_coalesced([x, x], "avg", handle)
        assert [t[0].item() for t in found] == [total / 4] * 2

        @torch.compile(backend="aot_eager")
        def compiled(t: torch.Tensor) -> torch.Tensor:
            return funcol.all_reduce(t * 2, "avg", handle) + 1

        assert compiled(x)[0] == total / 2 + 1
        for call in (
            lambda: dist.all_reduce(torch.ones(2, dtype=torch.int64), average),
            lambda: dist.reduce(torch.ones(2, dtype=torch.int64), 0, average),
            lambda: funcol.all_reduce(torch.ones(2, dtype=torch.int64), "avg", handle),
        ):
            refused(call, "ReduceOp.AVG of int64 over process group '0'", "ReduceOp.SUM")
        others(job)
    job.rebuild()
    refused_nothing(job)


def others(job: Rank) -> None:
    """What goes through as it is."""
    for operation, expected in (
        (dist.ReduceOp.SUM, 8),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.MAX, 4),
        (dist.ReduceOp.PRODUCT, 12),
        (dist.ReduceOp.BOR, 7),
    ):
        x = torch.tensor([job.rank + 1])
        dist.all_reduce(x, operation)
        assert x.item() == expected, operation
    x = funcol.all_reduce(torch.tensor([job.rank + 1.0]), "sum", dist.group.WORLD)
    assert x.item() == 8.0
    dist.barrier()


def all_kinds(job: Rank) -> None:
    """Groups of every kind: those without a member that is away are whole."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    made = {
        (0, 1, 2, 3): dist.group.WORLD,
        (1, 3): dist.new_group([3, 1]),
        mesh_row(job, 1): mesh["tp"].get_group(),
        mesh_row(job, 0): mesh["dp"].get_group(),
        (job.rank,): dist.new_subgroups(1)[0],
        (3, 0, 2): dist.new_group([3, 0, 2], sort_ranks=False),
        # the last: torch 2.15 gives later groups other names where a rank was left out
        (0, 2): dist.new_group([0, 2], use_local_synchronization=True),
    }
    for away in (2, 3), (3,), (0,), (0, 1), ():
        if not job.rebuild(*away):
            continue
        for ranks, handle in made.items():
            if job.rank not in ranks or handle is dist.GroupMember.NON_GROUP_MEMBER:
                continue
            here = [r for r in ranks if r not in away]
            x = value(job)
            dist.all_reduce(x, dist.ReduceOp.AVG, group=handle)
            expected = sum(torch.arange(1.0, 4.0) * (r + 1) for r in here) / len(ranks)
            assert torch.allclose(x, expected), (away, ranks, x)
            assert dist.get_process_group_ranks(handle) == list(ranks)
            rows = [torch.zeros(3) for _ in ranks]
            if len(here) == len(ranks):
                dist.all_gather(rows, value(job), group=handle)
                assert [int(row[0]) - 1 for row in rows] == list(ranks)
            else:
                gather = functools.partial(dist.all_gather, rows, value(job), group=handle)
                refused(gather, f"of ranks {list(ranks)}")


def mesh_row(job: Rank, dimension: int) -> tuple[int, ...]:
    at = job.rank // 2, job.rank % 2
    return (2 * at[0], 2 * at[0] + 1) if dimension else (at[1], at[1] + 2)
