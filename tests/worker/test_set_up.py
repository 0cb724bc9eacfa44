"""A set-up in a first process and in a replacement, each a process of its own; a world of one rank,
whose collectives return what they are given. So VALUE, which differs, shows what is given again."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

from taskd.records import sealed
from taskd.records.start import SETUP, Start
from taskd.worker.communication.methods import FILLING
from taskd.worker.set_up import interception
from taskd.worker.set_up.calls import SetUp
from taskd.worker.set_up.results import NotTheSame, Result, Results
from taskd.worker.set_up.values import check_object
from tests.lab import warm

START = """
import os, torch, torch.distributed as dist
from datetime import timedelta
from taskd.worker.set_up import results, functions as set_up
set_up.begin()
import taskd
value = float(os.environ["VALUE"])
"""
INIT = """
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
"""
END = """
print(sorted(got.items()))
set_up.settle(protected if "protected" in globals() else ())
set_up.stop(calls=False)
"""


@pytest.fixture
def run(tmp_path):
    sealed.write_key(tmp_path, b"k" * sealed.KEY_BYTES, "job")

    def run(body: str, incarnation: int = 0, init: str = INIT) -> subprocess.CompletedProcess[str]:
        env = {
            **os.environ,
            "TASKD_SHARED_DIR": str(tmp_path),
            "TASKD_LOCAL_RANK": "0",
            "RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "VALUE": str(5 - 2 * min(incarnation, 1)),
            "TASKD_INCARNATION": str(incarnation),
        }
        return warm.python(START + init + "got = {}\n" + body + END, env)

    return run


def same(run, body: str, init: str = INIT) -> str:
    found = [run(body, incarnation, init) for incarnation in range(2)]
    assert [r.returncode for r in found] == [0, 0], found[0].stderr + found[1].stderr
    first, second = ("".join(x for x in r.stdout.splitlines() if x[:6] != "[Gloo]") for r in found)
    assert first == second
    return first


FILLED = """
def mine(): return torch.full((2, 2), value)
other = dist.new_group([0])
x = mine(); dist.all_reduce(x, group=other); got["all_reduce"] = x
x = mine(); work = dist.all_reduce(x, async_op=True); work.wait(); x.mul_(2); got["async"] = x / 2
x = mine().bfloat16().t(); dist.broadcast(x, 0); got["bfloat16"] = x
x = mine()[0, 0]; dist.broadcast(x, 0); got["scalar"] = x
x = [torch.zeros(2, 2)]; dist.all_gather(x, mine()); got["all_gather"] = x[0]
x = torch.zeros(2, 2); dist.all_gather_into_tensor(x, mine()); got["into"] = x
x = torch.zeros(2, 2); dist.scatter(x, [mine()], 0); got["scatter"] = x
x = [torch.zeros(2, 2)]; dist.gather(mine(), x, 0); got["gather"] = x[0]
x = mine(); dist.reduce(x, 0); got["reduce"] = x
x = torch.zeros(2, 2); dist.reduce_scatter_tensor(x, mine()); got["reduce_scatter_tensor"] = x
x = mine(); w = dist.all_reduce(x, async_op=True)
while not w.is_completed(): pass
got["polled"] = x
dist.barrier(); dist.barrier(async_op=True).wait(timeout=timedelta(seconds=5))
dist.monitored_barrier()
"""


def test_tensors_are_those_of_the_first_process(run):
    assert same(run, FILLED).count("5.") == 41


OBJECTS = """
x = [{"v": value}, "a" * int(value)]; dist.broadcast_object_list(x, 0); got["broadcast"] = x
x = [None]; dist.all_gather_object(x, value); got["gather"] = x
x = [None]; dist.scatter_object_list(x, [value], 0); got["scatter"] = x
"""


def test_objects_are_too_also_at_their_root(run):
    assert same(run, OBJECTS) == (
        "[('broadcast', [{'v': 5.0}, 'aaaaa']), ('gather', [5.0]), ('scatter', [5.0])]"
    )


FUNCTIONAL = """
import torch.distributed._functional_collectives as fc
g = dist.group.WORLD
got["all_reduce"] = fc.all_reduce(torch.tensor([value]), "sum", g) + 0
got["gather"] = fc.all_gather_tensor(torch.tensor([value]), 0, g) + 0
got["many"] = [t + 0 for t in fc.all_reduce_coalesced([torch.tensor([value])] * 2, "sum", g)]
got["scatter"] = fc.reduce_scatter_tensor(torch.tensor([value]), "sum", 0, g) + 0
"""


def test_functional_collectives_are_too(run):
    assert same(run, FUNCTIONAL).count("5.") == 5


STORES = """
store = dist.distributed_c10d._get_default_store()
store.set("a", str(value)); got["get"] = store.get("a"); got["add"] = store.add("n", int(value))
got["check"] = store.check(["a"]); got["wait"] = store.wait(["a"])
own = dist.TCPStore("127.0.0.1", 0, is_master=True)
own.set("b", str(value)); got["own"] = own.get("b")
"""


def test_stores_are_too(run):
    assert same(run, STORES) == (
        "[('add', 5), ('check', True), ('get', b'5.0'), ('own', b'5.0'), ('wait', None)]"
    )


@pytest.mark.parametrize(
    "init",
    [
        'dist.init_process_group("gloo", None, timedelta(seconds=9), 1, 0, dist.HashStore())',
        'dist.init_process_group(backend="gloo", store=dist.HashStore(), rank=0, world_size=1)',
        "import tempfile, pathlib\nfrom torch.distributed.device_mesh import init_device_mesh\n"
        "os.environ['MASTER_PORT'] = '0'\n"
        "mesh = init_device_mesh('cpu', (1, 1), mesh_dim_names=('a', 'b'))",
    ],
)
def test_every_way_to_the_default_group(run, init):
    body = "x = torch.tensor([value]); dist.all_reduce(x); got['x'] = x\n"
    body += "got['backend'] = dist.get_backend(), dist.get_rank(), dist.get_world_size()"
    assert "tensor([5.])" in same(run, body, init + "\n")


def test_another_order_ends_the_rank_by_name_even_if_the_script_goes_on(run):
    body = """
x = torch.tensor([value])
try:
    dist.broadcast(x, 0) if taskd.replacement else dist.all_reduce(x)
except RuntimeError as error:
    print(type(error).__name__)
set_up.check()
"""
    assert run(body).returncode == 0
    second = run(body, 1)
    assert second.returncode == 1 and second.stdout.splitlines()[-1] == "NotTheSame"
    assert "calls broadcast (root 0) of float32 [1] as call 1 on process group 0" in second.stderr
    assert "called allreduce of float32 [1]" in second.stderr


LARGE = """
weight = torch.nn.Parameter(torch.full((5 << 20,), value))
dist.broadcast(weight.data, 0)
big = torch.full((20 << 20,), value)
dist.broadcast(big, 0)
small = torch.tensor([value]); dist.all_reduce(small); got["small"] = small
protected = [weight, big] if {protects} else [weight]
"""


def test_what_is_too_large_is_not_kept_if_it_is_restored(run, tmp_path):
    same(run, LARGE.format(protects=True))
    assert 0 < sum(p.stat().st_size for p in tmp_path.glob("start-0.*")) < 1 << 16


def test_what_is_too_large_and_lost_is_refused_by_name(run):
    first = run(LARGE.format(protects=False))
    assert "broadcast (root 0) of float32 [20971520] of the set-up cannot be given" in first.stderr
    second = run(LARGE.format(protects=False), 1)
    assert second.returncode == 1 and "its 80.0 MiB are too many to be kept" in second.stderr


ONCE = """
def load(): return {"step": int(value)}
got["once"] = taskd.once(load)
x = torch.tensor([value]); dist.all_reduce(x); got["x"] = x
"""


def test_once_runs_in_the_first_process_alone(run):
    assert same(run, ONCE) == "[('once', {'step': 5}), ('x', tensor([5.]))]"


@pytest.mark.parametrize(
    "value, why",
    [
        ("object()", "TypeError: taskd.once(<lambda>): its result cannot be kept"),
        ("torch.zeros(30 << 20)", "ValueError: taskd.once(<lambda>): its result of 120.0 MiB"),
    ],
)
def test_once_refuses_what_it_cannot_keep_in_the_first_process(run, value, why):
    found = run(f"taskd.once(lambda: {value})")
    assert found.returncode == 1 and why in found.stderr


def test_a_work_that_nobody_waits_for_has_no_result(run):
    body = "x = torch.tensor([value]); w = dist.all_reduce(x, async_op=True)\n"
    body += "w.get_future().wait(); got['x'] = x"
    assert "tensor([5.])" in same(run, body)  # it is over when the set-up is


def test_torch_is_as_before_when_the_set_up_is_over():
    before = {name: getattr(dist.ProcessGroup, name, None) for name in FILLING}
    interception.install()
    assert any(getattr(dist.ProcessGroup, name, None) != before[name] for name in FILLING)
    interception.uninstall()
    assert {name: getattr(dist.ProcessGroup, name, None) for name in FILLING} == before


SPAWNS = "this script starts processes with torch.multiprocessing.spawn"


def test_a_script_that_starts_ranks_by_itself_is_told(monkeypatch, caplog):
    started: list[int] = []
    spawn = sys.modules["torch.multiprocessing.spawn"]
    monkeypatch.setattr(spawn, "start_processes", lambda *args, **more: started.append(args[2]))
    monkeypatch.setenv("RANK", "0")
    interception.install()
    try:
        torch.multiprocessing.spawn(print, nprocs=2)
    finally:
        interception.uninstall()
    assert started == [2] and SPAWNS in caplog.text


def test_torch_has_the_names_that_this_takes():
    """Each method that fills tensors is known: one that is not would not be given again."""
    methods = {n for n in dir(dist.ProcessGroup) if not n.startswith("__")}
    known = {*FILLING, *interception.OTHER}
    fills = {n for n in methods if n.strip("_").startswith(("all", "reduce", "gather", "scatter"))}
    fills |= methods & {"broadcast", "send", "recv", "recv_anysource", "barrier"}
    assert fills <= known, fills - known
    assert set(dir(dist.Work)) >= set(interception.WORK)
    assert set(dir(dist.Store)) >= {"get", "set", "add"}
    operators = torch.ops._c10d_functional
    assert all(hasattr(operators, n) for n in ("all_reduce", "wait_tensor", "broadcast"))


SUM = Result("process group 0", "allreduce", "", [])


def test_what_peers_got_before_the_repair_is_given_and_what_they_get_later_is_not(
    tmp_path, monkeypatch
):
    """They get that with this rank."""
    sealed.write_key(tmp_path, b"k" * sealed.KEY_BYTES, "job")
    for name, value in (
        ("TASKD_SHARED_DIR", str(tmp_path)),
        ("TASKD_LOCAL_RANK", "0"),
        ("RANK", "0"),
    ):
        monkeypatch.setenv(name, value)
    peer, start = Results(), Start(tmp_path, 1, 1)
    peer.add(Result("process group 0", "allreduce", "", [], [b"1"]))
    start.write({SETUP: peer.encode()})
    present = SetUp()
    present.note_peers()
    peer.add(Result("process group 0", "allreduce", "", [], [b"2"]))
    start.write({SETUP: peer.encode()})
    assert present._known(SUM) is None
    present.come_back(between=True)
    assert present._known(SUM).data == [b"1"]
    assert present._known(SUM) is None
    assert [result.data for result in present.results.made] == [[b"1"]]
    present.begin_loop(calls=False)
    assert not present.asks


def test_an_object_that_the_root_has_made_anew_is_refused():
    """Others have the one of its previous process, and torch leaves the root its own."""
    call = Result("process group 0", "broadcast", "root 0", [("int64", (1,))])
    known = Result(
        "process group 0", "broadcast", "root 0", [("int64", (1,))], [b"\x01" + b"\0" * 7]
    )

    def broadcast_object_list(value, rank=0):
        check_object(call, known, [torch.tensor([value])], rank)

    broadcast_object_list(1)
    broadcast_object_list(2, rank=1)
    check_object(call, known, [torch.tensor([2])], 0)
    with pytest.raises(NotTheSame, match="another one"):
        broadcast_object_list(2)
