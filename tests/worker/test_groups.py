"""Process groups take new backends and stay the objects that they are; what taskd needs of torch
for that is there."""

from __future__ import annotations

import contextlib
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from taskd.worker.communication import group_tables, groups
from tests.lab import warm


@pytest.fixture
def world():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    if dist.is_initialized():
        dist.destroy_process_group()


def test_this_torch_has_what_renewing_a_group_needs():
    assert groups.lacking() == []


def test_gloos_threads_have_the_names_that_libtaskd_looks_for(world):
    """By these it completes torn messages (streams.c), and contains lost pages of gloo's buffers
    (allocations.c); by the library's name those of tensors (callers.c)."""
    dist.all_reduce(torch.ones(1))
    names, end = set(), time.monotonic() + 10
    # a thread gives itself its name once it runs
    while not {"gloo_tcp_loop"} <= names and time.monotonic() < end:
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError):  # it has just ended
                names.add(Path(f"/proc/self/task/{task}/comm").read_text().strip())
    source = {name: Path(f"csrc/{name}.c").read_text() for name in ("streams", "allocations")}
    wanted = {name for name in names if f'strcmp(name, "{name}")' in source["streams"]}
    assert wanted == {"gloo_tcp_loop"}
    assert any(f'strcmp(name, "{name}")' in source["allocations"] for name in names), names
    assert "/libc10.so" in Path("/proc/self/maps").read_text()


def test_a_group_stays_the_object_and_uses_its_newest_backend(world):
    other = dist.new_group([0], timeout=timedelta(seconds=77))
    renewals, store, used = groups.Renewals(), dist.HashStore(), []
    for generation in range(4):
        for group in groups.present():
            renewals.renew(group, dist.PrefixStore(f"{generation}", store))
        used.append(other._get_backend(torch.device("cpu")))
        for handle in (world, other):
            value = torch.ones(3)
            dist.all_reduce(value, group=handle)
            assert value.tolist() == [1.0] * 3
    assert len({id(backend) for backend in used}) == 4
    assert dist.group.WORLD is world and dist.get_backend(other) == "gloo"
    assert [g.timeout for g in groups.present()][1] == timedelta(seconds=77)
    assert other.name() == "gloo"  # torch has no name for types that it does not know


def test_collectives_are_counted_over_all_groups(world):
    other, renewals = dist.new_group([0]), groups.Renewals()
    before = renewals.counts()
    for handle in (world, other, other):
        dist.all_reduce(torch.ones(1), group=handle)
    assert [count - before[handle] for handle, count in renewals.counts().items()] == [1, 2]
    dist.destroy_process_group(other)
    made = dist.new_group([0])
    assert renewals.counts().keys() == {world, made}


def test_backends_of_former_generations_are_released(world):
    assert group_tables.address(world) is not None and group_tables._release() is not None
    other, renewals, store = dist.new_group([0]), groups.Renewals(), dist.HashStore()
    first, kept = None, []
    for generation in range(30):
        for group in groups.present():
            renewals.renew(group, dist.PrefixStore(f"released {generation}", store))
            dist.all_reduce(torch.ones(1), group=group.handle)
        renewals.dropped.let_go()
        end = time.monotonic() + 60  # it only ends what hangs
        while renewals.dropped.left and time.monotonic() < end:
            time.sleep(0.01)
        kept.append(tuple(len(os.listdir(f"/proc/self/{what}")) for what in ("task", "fd")))
        first = first or other._get_backend(torch.device("cpu"))
    # none more; what tests before this one have left in this process may still end meanwhile
    assert all(now <= then for last in kept[3:] for now, then in zip(last, kept[2], strict=True))
    assert renewals.used < groups.Renewals.FIRST
    assert dist.get_backend(other) == "gloo" and other.name() == "gloo"
    del first


def test_where_idle_backends_stay_a_group_has_room_for_so_many(world, monkeypatch):
    monkeypatch.setattr(group_tables, "_release", lambda: None)
    renewals, store = groups.Renewals(), dist.HashStore()
    (group,) = groups.present()
    renewals._types[world] = groups.Renewals.LIMIT - 1
    renewals.renew(group, dist.PrefixStore("last", store))
    assert renewals.used == groups.Renewals.LIMIT
    with pytest.raises(RuntimeError, match="no room for more"):
        renewals.renew(group, dist.PrefixStore("one more", store))


def test_what_cannot_be_renewed_is_named(world, monkeypatch):
    assert groups.obstacle() is None
    monkeypatch.setattr(groups, "_backends", lambda name: {"cpu": "mpi"})
    assert "'0' of ranks [0]: its backend is MPI" in groups.obstacle()
    monkeypatch.setattr(groups, "_backends", lambda name: {"cpu": "gloo", "cuda": "nccl"})
    assert groups.obstacle("cpu") is None and groups.obstacle("cuda") == groups.NCCL
    monkeypatch.setenv("TASKD_NCCL", "try")
    assert groups.obstacle("cuda") is None
    monkeypatch.setattr(groups, "GROUP", (*groups.GROUP, "_no_such_name"))
    assert groups.obstacle() == f"torch {torch.__version__} lacks ProcessGroup._no_such_name"


def test_groups_of_a_failed_attempt_are_forgotten_and_made_again_under_their_names(world):
    kept = dist.new_group([0])
    renewals = groups.Renewals()
    renewals.counts()
    name = dist.new_group([0]).group_name
    renewals.go_back()
    assert [g.handle for g in groups.present()] == [world, kept]
    assert dist.new_group([0]).group_name == name


SCRIPT = """
import torch, torch.distributed as dist
from datetime import timedelta
from taskd.worker.communication import groups
from taskd.worker.process import gloo_threads
from taskd.worker.set_up import functions as set_up
if {fake}:
    set_up.stand_in()
    dist.init_process_group("gloo")
else:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    groups._stand_ins.clear()
many = dist.get_world_size()
dist.new_group([0], timeout=timedelta(seconds=9))
dist.new_group([0], backend="gloo")
dist.new_group([0], use_local_synchronization=True)
print([(g.name, g.ranks, g.backend) for g in groups.present()][1:])
print(groups.present()[1].timeout.total_seconds(), groups.present()[0].backend)
if {fake}:
    assert dist.get_backend() == "gloo"
    set_up.real()
    renewals = groups.Renewals()
    for group in groups.present()[1:]:
        renewals.renew(group, dist.HashStore())
        assert dist.get_backend(group.handle) == "gloo" and group.handle.name() == "gloo"
        dist.all_reduce(torch.ones(1), group=group.handle)
        assert group.handle._get_backend(torch.device("cpu")).name() == "gloo"
    gloo_threads.settle()  # without it one of six such processes ends by abort()
"""


def test_groups_of_a_replacement_are_those_of_its_predecessor():
    """Their names, ranks and time-outs; under torch's fake backend first, real ones later."""
    env = {**os.environ, "RANK": "0", "WORLD_SIZE": "4"}
    found = [warm.python(SCRIPT.format(fake=fake), env) for fake in (True, False)]
    assert [r.returncode for r in found] == [0, 0], found[0].stderr + found[1].stderr
    # without gloo's own lines about its connections, which torch 2.10 prints
    mine, theirs = (
        [line for line in r.stdout.splitlines() if not line.startswith("[Gloo]")] for r in found
    )
    assert mine == theirs and "9.0 gloo" in mine
