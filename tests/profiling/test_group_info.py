"""`dump_group_info` of the guides: which ranks a communicator's name means."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from taskd.profiling import group_info
from taskd.python.adaptor.pytorch.group_info import dump_group_info
from taskd.settings.profiling import group_info_path


@pytest.fixture
def groups(monkeypatch, tmp_path):
    """Rank 1 of four, with its whole group, half of it, and an unnamed one."""
    monkeypatch.setenv("TASKD_PROFILING_PATH", str(tmp_path / "profiles"))
    monkeypatch.setenv("MINDX_TASK_ID", "job 1")
    monkeypatch.delenv("GROUP_BASE_DIR", raising=False)
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    dist.new_group([0, 1], group_desc="TENSOR_MODEL_PARALLEL_GROUP")
    dist.new_group([3, 1])
    dist.new_group([0, 2])  # without this rank
    yield tmp_path
    dist.destroy_process_group()


def written(directory):
    return json.loads((directory / "job_1" / "1" / "parallel_group.json").read_text())


def test_the_groups_of_a_rank(groups, caplog):
    dump_group_info()
    found = written(groups / "profiles")
    whole, tensor, other = found.values()
    assert whole == {
        "group_name": "default_group",
        "group_rank": 1,
        "global_ranks": [0, 1, 2, 3],
    }
    assert tensor == {
        "group_name": "TENSOR_MODEL_PARALLEL_GROUP",
        "group_rank": 1,
        "global_ranks": [0, 1],
    }
    assert (other["group_name"], sorted(other["global_ranks"])) == ("", [1, 3])
    assert len(found) == 3 and all(found)
    # an older guide names the rank; the directory of the guides counts where it exists
    dump_group_info(1)
    assert written(groups / "profiles") == found
    assert not [r for r in caplog.records if r.levelname != "INFO"]
    assert [p.name for p in (groups / "profiles" / "job_1" / "1").iterdir()] == [group_info.FILE]


def test_the_documented_directory(groups, monkeypatch):
    monkeypatch.setenv("GROUP_BASE_DIR", str(groups / "missing"))
    dump_group_info()
    assert len(written(groups / "profiles")) == 3
    (groups / "there").mkdir()
    monkeypatch.setenv("GROUP_BASE_DIR", str(groups / "there"))
    dump_group_info()
    assert len(written(groups / "there")) == 3
    named = {"GROUP_BASE_DIR": str(groups / "there"), "TASKD_PROFILING_PATH": "/elsewhere"}
    assert group_info_path(named, "log") == str(groups / "there")
    assert group_info_path({**named, "GROUP_BASE_DIR": ""}, "log") == "/elsewhere"


@pytest.mark.parametrize("rank", [-1, 0, "1", True, 2**70, object()])
def test_a_rank_that_is_not_this_one_is_told(groups, caplog, rank):
    dump_group_info(rank)
    assert "this process is rank 1" in caplog.text and len(written(groups / "profiles")) == 3


def test_what_cannot_be_written_ends_nothing(groups, caplog, monkeypatch):
    (groups / "file").write_text("")
    monkeypatch.setenv("TASKD_PROFILING_PATH", str(groups / "file"))
    dump_group_info()
    assert "nothing is written: NotADirectoryError" in caplog.text


def test_without_groups(caplog):
    dump_group_info()
    assert "call it after init_process_group" in caplog.text


def test_hccl_names_its_communicators(monkeypatch):
    """As torch_npu's ProcessGroupHCCL does; a group that was never used has none."""
    monkeypatch.setattr(torch, "device", lambda name: name)
    names = {"tp": "10.0.0.1%eth0_60000_0_1", "idle": None}

    def group(config, meant):
        hccl = SimpleNamespace(
            options=SimpleNamespace(hccl_config=config),
            get_hccl_comm_name=lambda rank, init_comm: names[meant] if not init_comm else 1 / 0,
        )
        return SimpleNamespace(_get_backend=lambda device: hccl if device == "npu" else 1 / 0)

    named = group_info._names(group({"group_name": "tp"}, "tp"), "hccl", 3)
    assert named == ("10.0.0.1%eth0_60000_0_1", "tp")
    assert group_info._names(group(None, "idle"), "cpu:gloo,npu:hccl", 3) == ("", "")
