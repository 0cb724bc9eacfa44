"""The texts by which errors are recognised are those of the torch that is installed."""

from __future__ import annotations

import datetime
import multiprocessing
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.devices import Cpu, FaultType, of, tables

CPU = Cpu(torch.device("cpu"))


TORCH = Path(torch.__file__).parent


def test_texts_of_gloo_are_torchs():
    library = (TORCH / "lib" / "libtorch_cpu.so").read_bytes()
    parts = {
        part
        for row in tables.GLOO
        for text in row.texts
        for part in text.removeprefix("^").split("…")
    }
    assert len(parts) >= 6
    assert [p for p in parts if p.encode() not in library] == []


def test_texts_of_nccl_are_torchs():
    """Those that stand in a header; the CPU build of torch has no library with the others."""
    header = (
        TORCH / "include" / "torch" / "csrc" / "distributed" / "c10d" / "NCCLUtils.hpp"
    ).read_text()
    assert 'err = "NCCL error in: "' in header and 'err = "NCCL timeout in: "' in header
    assert "TORCH_CHECK_WITH(DistBackendError, false, err)" in header


def _rank(rank, path, ends, told, go):
    group = {
        "store": dist.FileStore(path, 2),
        "rank": rank,
        "world_size": 2,
        "timeout": datetime.timedelta(seconds=60),
    }
    dist.init_process_group("gloo", **group)
    dist.all_reduce(torch.zeros(1))
    if rank == 1:
        if not ends:
            go.wait(60)  # stays away from the collectives
        os._exit(0)
    if not ends:
        c10d._set_pg_timeout(datetime.timedelta(seconds=1), dist.group.WORLD)
    device, found = of(torch.device("cpu")), []
    for _ in range(2):
        try:
            dist.all_reduce(torch.zeros(1))
        except Exception as error:
            found.append(device.recognise(error) or error)
    told.send(found)
    os._exit(0)


@pytest.mark.parametrize(
    "ends, name",
    [(True, "gloo connection"), (False, "gloo time-out")],
    ids=["peer dies", "peer hangs"],
)
def test_what_gloo_really_raises(tmp_path, ends, name):
    context = multiprocessing.get_context("spawn")
    (heard, told), go = context.Pipe(duplex=False), context.Event()
    ranks = [
        context.Process(target=_rank, args=(r, str(tmp_path / "store"), ends, told, go))
        for r in (0, 1)
    ]
    for process in ranks:
        process.start()
    try:
        assert heard.poll(120), "no answer from rank 0"
        assert [(f.name, f.type) for f in heard.recv()] == [(name, FaultType.NETWORK)] * 2
    finally:
        go.set()
        for process in ranks:
            process.kill()
            process.join()
