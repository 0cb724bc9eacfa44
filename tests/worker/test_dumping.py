"""A dump is made by one rank from the records of all: torch reads whole tensors from it, each rank
gets back its own parts, and what is missing, damaged or of another layout is refused by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from taskd.core.job.snapshots import FINAL
from taskd.messages import to_rank
from taskd.records import dumps
from taskd.worker.dump import estimating, snapshot
from taskd.worker.repair import choosing, dumping
from taskd.worker.state import entry
from taskd.worker.state.entry import Entry
from taskd.worker.state.part import tensors
from taskd.worker.state.training_state import TrainingState

WORLD, STEP, SAVER = 4, 7, 1


@pytest.fixture(autouse=True)
def world(monkeypatch):
    monkeypatch.setenv("TASKD_SECRET", "tests")


def in_rank(rank: int, do: Callable[[], Any]) -> Any:
    """Do it in a process that is `rank`: torch keeps meshes, with their ranks, in caches."""
    reader, writer = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=WORLD)
            result = True, do()
        except Exception as error:
            result = False, error
        with os.fdopen(writer, "wb") as file:
            pickle.dump(result, file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        well, result = pickle.load(file)
    os.waitpid(pid, 0)
    if not well:
        raise result
    return result


def plain() -> nn.Sequential:
    """10 rows on 4 ranks are uneven, of 3 rows one rank has none."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 3))


def fsdp(net):
    fully_shard(net)


def hsdp(net):
    fully_shard(net, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


def tp_fsdp(net):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(net, mesh["tp"], plan, src_data_rank=None)
    try:
        fully_shard(net, mesh=mesh["dp"])
    except NotImplementedError as why:  # of shards of different sizes, in torch 2.7
        pytest.skip(str(why))


def alone(net):
    pass


def stateful(net: nn.Module, factor: float = 1.0) -> torch.optim.Optimizer:
    """Optimizer state that can be computed from the parameters."""
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.5)
    for p in net.parameters():
        whole = {"exp_avg": p.detach() * 2 * factor, "exp_avg_sq": p.detach() * 3 * factor}
        optimizer.state[p] = {"step": torch.tensor(7.0), **whole}
    return optimizer


def of_rank(rank: int, layout, net: nn.Module | None = None) -> TrainingState:
    """What `rank` has, found as it is in a job."""
    net = plain() if net is None else net
    layout(net)
    if layout is not alone:
        net[1].running_mean.fill_(float(rank))
    optimizer = stateful(net)
    torch.manual_seed(1)
    state = TrainingState({"model": net, "optimizer": optimizer, "head": nn.Linear(2, 2)})
    # no rank has the same parts; the head is equal
    state.set_apart([i for i, key in enumerate(state._keys) if key[0] != "head"])
    return state


def record(state: TrainingState, rank: int) -> tuple[int, int, bytes]:
    parts = state.parts.take()
    made = Entry(0, 0, 0, state.structure(), parts).kept()
    return rank, FINAL, b"".join(entry.encode(made, dumps.seal_of(rank), STEP))


def written(work, make, ranks=range(WORLD)):
    """The records of these ranks. `make`: gives the state of a rank, in its process."""
    return dumps.write_records(work, [in_rank(r, lambda r=r: record(make(r), r)) for r in ranks])


def saved(work, make, files):
    order = to_rank.SaveState(1, 1, SAVER, STEP, "work", False, WORLD, len(files))
    return in_rank(SAVER, lambda: dumping.save(snapshot.of(make(SAVER)), work, order))


def dump(work, make, ranks=range(WORLD)):
    """A dump of all ranks, saved by SAVER with the records of `ranks`."""
    files = written(work, make, ranks)
    return dumps.read(dumps.seal(work, STEP, WORLD, [*files, *saved(work, make, files)]))


def of_torch(found: dumps.Found, wanted):
    reader = checkpoint.FileSystemReader(found.path / dumps.STATE)
    checkpoint.load(wanted, storage_reader=reader, no_dist=True)
    return wanted


def names(found: dumps.Found) -> dict[str, object]:
    reader = checkpoint.FileSystemReader(found.path / dumps.STATE)
    return reader.read_metadata().state_dict_metadata


def empty() -> tuple[nn.Module, torch.optim.Optimizer]:
    net = plain()
    for tensor in (*net.parameters(), *net.buffers()):
        tensor.data.zero_()
    return net, stateful(net, 0.0)


def assert_whole(found: dumps.Found) -> None:
    net, optimizer = empty()
    values = of_torch(found, {"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    expected, at = plain(), stateful(plain()).state_dict()
    for key, parameter in expected.named_parameters():
        assert torch.equal(values["model"][key], parameter), key
    assert values["optimizer"]["param_groups"][0]["lr"] == 0.5
    for index, wanted in at["state"].items():
        for key, tensor in wanted.items():
            assert torch.equal(values["optimizer"]["state"][index][key], tensor), (index, key)


@pytest.mark.parametrize("layout", [fsdp, hsdp, tp_fsdp])
def test_torch_reads_whole_tensors(tmp_path, layout):
    found = dump(tmp_path / "work", partial(of_rank, layout=layout))
    dumps.check(found)
    assert_whole(found)
    head = of_torch(found, {"head": {"weight": torch.zeros(2, 2)}})["head"]["weight"]
    torch.manual_seed(1)
    assert torch.equal(head, nn.Linear(2, 2).weight)
    # one rank's buffers, as torch does
    mean = of_torch(found, {"model": {"1.running_mean": torch.zeros(10)}})["model"]
    assert torch.equal(mean["1.running_mean"], torch.full((10,), float(SAVER)))


@pytest.mark.parametrize("layout", [fsdp, tp_fsdp])
def test_each_rank_gets_its_own_back(tmp_path, layout):
    found = dump(tmp_path / "work", partial(of_rank, layout=layout))

    def load(rank):
        before, state = of_rank(rank, layout), of_rank(rank, layout)
        for tensor in (*state.replicated, *state.private):
            tensor.zero_()
        kind, held, _ = dumping.load(state, found, rank)
        state.parts.put(held.parts, only=tensors)
        assert kind == FINAL and before.pieces() == state.pieces()
        for mine, theirs in (
            (state.replicated, before.replicated),
            (state.private, before.private),
        ):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
            assert any(row.any() for row in mine)

    for rank in range(WORLD):
        in_rank(rank, partial(load, rank))


def load(rank, layout, found):
    in_rank(rank, lambda: dumping.load(of_rank(rank, layout), found, rank) and None)


def test_a_lost_record_leaves_out_what_only_it_had(tmp_path):
    found = dump(tmp_path / "one", partial(of_rank, layout=fsdp), [0, 1, 3])
    assert "model.0.weight" not in names(found) and "head.weight" in names(found)
    with pytest.raises(checkpoint.CheckpointException, match=r"Missing key .* model.0.weight"):
        of_torch(found, {"model": {"0.weight": torch.zeros(10, 6)}})
    with pytest.raises(dumps.BadDump, match=r"no record of ranks \[2\]"):
        load(2, fsdp, found)
    # a replica has the same parts
    assert_whole(dump(tmp_path / "other", partial(of_rank, layout=hsdp), [0, 1, 3]))


def test_stages_of_a_pipeline(tmp_path):
    """Parameters have names of their own; optimizer state goes by number, so ranks are named."""

    def stage(rank):
        torch.manual_seed(rank)
        return nn.ModuleDict({f"layer{rank}": nn.Linear(3, 3)})

    found = dump(tmp_path / "work", lambda r: of_rank(r, alone, stage(r)))
    wanted = {
        "model": {
            k: torch.zeros_like(v) for r in range(4) for k, v in stage(r).state_dict().items()
        }
    }
    values = of_torch(found, wanted)["model"]
    for rank in range(WORLD):
        net = stage(rank)
        for key, tensor in net.state_dict().items():
            assert torch.equal(values[key], tensor), key
        had, mine = stateful(net).state_dict(), stateful(net, 0.0).state_dict()
        mine = of_torch(found, {f"rank-{rank}": {"optimizer": mine}})[f"rank-{rank}"]["optimizer"]
        assert torch.equal(mine["state"][0]["exp_avg"], had["state"][0]["exp_avg"])
        assert mine["param_groups"] == had["param_groups"]
    assert not any(name.startswith("optimizer.") for name in names(found))


def test_equal_stages_are_saved_once(tmp_path):
    def stage(rank):
        torch.manual_seed(rank // 2)
        return nn.ModuleDict({"layer": nn.Linear(30, 30)})

    found = dump(tmp_path / "work", lambda r: of_rank(r, alone, stage(r)))
    prefixes = {name.partition(".")[0] for name in names(found)}
    assert prefixes == {"rank-0", "rank-2", "head"}


def test_another_layout_is_refused(tmp_path):
    found = dump(tmp_path / "work", partial(of_rank, layout=fsdp))
    for layout in (hsdp, alone):
        with pytest.raises(
            dumps.BadDump, match=r"model.0.weight the rank had the part .* has"
        ) as e:
            load(2, layout, found)
        assert "torch.distributed.checkpoint.load" in str(e.value)


def chosen(rank: int, ranks: int) -> int:
    """The step of the dump that a rank of a job of so many begins from."""

    def choose() -> int:
        (found,) = choosing.find(of_rank(rank, layout=fsdp), rank, ranks).values()
        return found.step

    return in_rank(rank, choose)


def test_another_world_size_is_refused(tmp_path, monkeypatch):
    found = dump(tmp_path / "work", partial(of_rank, layout=fsdp))
    monkeypatch.setenv("TASKD_RESUME_PATH", str(found.path))
    with pytest.raises(dumps.BadDump, match=r"saved by 4 ranks, this job has 2: .* cannot be kept"):
        chosen(0, 2)
    assert chosen(0, WORLD) == STEP


def test_a_dump_without_a_record_is_passed_over_by_all_ranks(tmp_path, monkeypatch):
    """Also by those that have theirs, or the job would begin from nothing that all can."""
    monkeypatch.setenv("TASKD_DUMP_PATH", str(tmp_path))
    monkeypatch.setenv("TASKD_RESUME_PATH", "auto")
    make = partial(of_rank, layout=fsdp)
    older = dump(tmp_path / "older", make)
    newer = dump(tmp_path / "newer", make, [0, 1, 3])
    assert dumps.complete(tmp_path)[0] == [newer, older]
    for rank in range(WORLD):
        found = in_rank(rank, lambda r=rank: choosing.find(of_rank(r, layout=fsdp), r, WORLD))
        assert list(found.values()) == [older]
    # nothing replaces what may be the last copy of something, and it takes no other's place
    assert dumps.clear(tmp_path, 1) == []
    assert dumps.complete(tmp_path)[0] == [newer, older]
    monkeypatch.setenv("TASKD_RESUME_PATH", str(newer.path))
    for rank in (1, 2):
        with pytest.raises(dumps.BadDump, match=r"no record of ranks \[2\]"):
            chosen(rank, WORLD)


@pytest.mark.parametrize("name", ["state/__3_0.distcp", "state/.metadata", "index"])
def test_every_file_is_checked_by_some_rank(tmp_path, monkeypatch, name):
    found = dump(tmp_path / "work", partial(of_rank, layout=fsdp))
    path = found.path / name
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    monkeypatch.setenv("TASKD_RESUME_PATH", str(found.path))
    refused = []
    for rank in range(WORLD):
        try:
            chosen(rank, WORLD)
            load(rank, fsdp, found)
        except dumps.BadDump as error:
            assert name in str(error) and "does not match its checksum" in str(error)
            refused.append(rank)
    assert refused
    path.unlink()
    with pytest.raises(dumps.BadDump, match=f"{name} is missing"):
        chosen(0, WORLD)


def test_a_damaged_record_is_not_saved_from(tmp_path):
    work = tmp_path / "work"
    make = partial(of_rank, layout=fsdp)
    files = written(work, make)
    path = work / dumps.RECORDS / "rank-2"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(OSError, match=r"rank-2: its digest is wrong"):
        saved(work, make, files)
    assert not os.listdir(tmp_path), "something was left"
    written(work, make, [0])
    with pytest.raises(OSError, match="1 records here, the agents wrote 4: set TASKD_DUMP_PATH"):
        saved(work, make, files)


def test_replicas_need_no_records(tmp_path):
    def replica(rank):
        net = plain()
        return TrainingState({"model": net, "optimizer": stateful(net)})

    found = dump(tmp_path / "work", replica, [1])
    assert_whole(found)
    other, state = empty()
    state = TrainingState({"model": other, "optimizer": state})
    dumping.load(state, found, 1)
    for one, wanted in zip(other.parameters(), plain().parameters(), strict=True):
        assert torch.equal(one, wanted)
    fewer = TrainingState({"model": plain()})
    with pytest.raises(dumps.BadDump, match="give protect"):
        dumping.load(fewer, found, 1)


def test_a_state_larger_than_the_room_is_refused_at_the_start(tmp_path):
    estimating.check_room(tmp_path / "not" / "yet", 1 << 10)
    with pytest.raises(OSError, match=r"No space left on device: .* MB are needed, and .* free"):
        estimating.check_room(tmp_path, 1 << 60)
