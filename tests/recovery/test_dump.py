"""The dying gasp: a job that ends leaves its state, whole or not at all, and another one goes on
from it, bit for bit."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess

import pytest
import torch
import torch.distributed.checkpoint as checkpoint
import training

from scripts import record
from taskd.records import dumps


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    """That of the jobs, under which their dumps are sealed."""
    monkeypatch.setenv("TASKD_SECRET", "tests")


def dying(directory, world, script, *arguments, faults, **env):
    """A job that ends with a dump."""
    env = {"TASKD_RECOVER_STRATEGY": "dump", "TASKD_DUMP_PATH": str(directory / "dumps"), **env}
    return training.taskd(directory, world, script, *arguments, faults=faults, **env)


def assert_goes_on(directory, place, world, script, *arguments, reference, step):
    result = training.taskd(directory, world, script, *arguments, TASKD_RESUME_PATH=str(place))
    assert result.status == 0, result.output[-3000:]
    for rank in range(world):
        mine, theirs = result.steps(rank), reference.steps(rank)
        assert sorted(mine) == [s for s in sorted(theirs) if s >= step], (
            "not the steps from the dump on"
        )
        assert all(mine[s] == theirs[s] for s in mine), f"rank {rank} differs"
        assert result.final(rank) == reference.final(rank)


@pytest.mark.long
def test_a_relative_place_counts_from_where_the_job_was_started(tmp_path, reference):
    directory, script = tmp_path / "a", ("wandering.py", "20")
    place = {"TASKD_DUMP_PATH": "dumps"}
    result = dying(directory, 2, *script, faults="1:6:tail:kill", **place)
    assert f"step 6 is at {directory / 'dumps' / 'step-6'}" in training.paragraph(result)
    (directory / "again").mkdir()
    shutil.move(directory / "dumps", directory / "again" / "dumps")
    assert_goes_on(
        directory / "again", "dumps", 2, *script, reference=reference(2, *script), step=6
    )


def test_a_dump_is_resumed_and_read_by_torch(tmp_path, reference):
    result = dying(tmp_path / "a", 4, "mlp.py", "62", faults="2:6:tail:kill")
    assert result.status == 75
    path = tmp_path / "a" / "dumps" / "step-6"
    assert f"the state at the start of step 6 is at {path}" in training.paragraph(result)
    found = dumps.read(path)
    dumps.check(found)
    assert (found.step, found.world_size, found.ranks) == (6, 4, {0, 1, 2, 3})
    assert [p.name for p in path.parent.iterdir()] == ["step-6"], "something else was left"
    # by torch, without taskd
    weights = {"model": {"0.weight": torch.zeros(96, 32)}}
    checkpoint.load(
        weights, storage_reader=checkpoint.FileSystemReader(path / dumps.STATE), no_dist=True
    )
    assert weights["model"]["0.weight"].abs().sum() > 0
    assert_goes_on(
        tmp_path / "b",
        path.parent,
        4,
        "mlp.py",
        "62",
        reference=reference(4, "mlp.py", "62"),
        step=6,
    )


SHARDED = ("parallel.py", "10", "fsdp-accumulate")


def shards(whole: dict[str, torch.Tensor], rank: int, among: int = 4) -> torch.nn.Module:
    """What parallel.py has of the parameters at its end."""
    module = torch.nn.Module()
    module.parts = torch.nn.ParameterList(
        torch.nn.Parameter(tensor.chunk(among)[rank].clone())
        for name, tensor in whole.items()
        if name.startswith("model.")
    )
    return module


@pytest.mark.long
def test_shards_are_resumed_and_read_by_torch_into_another_layout(tmp_path, reference):
    """One rank dies in its step, and the one that saves dies of it; shards that no other rank has
    are in their records."""
    result = dying(tmp_path / "a", 4, "killed_saver.py", *SHARDED[1:], faults="2:6:tail:kill")
    assert result.status == 75 and (tmp_path / "a" / "killed-saver").exists()
    text = training.paragraph(result)
    assert text.count(": killed by SIGKILL") == 2 and "rank 2: killed" in text
    path = tmp_path / "a" / "dumps" / "step-6"
    assert f"the state at the start of step 6 is at {path}" in training.paragraph(result)
    dumps.check(dumps.read(path))
    assert_goes_on(tmp_path / "b", path, 4, *SHARDED, reference=reference(4, *SHARDED), step=6)
    # by torch, without taskd: into two ranks, and into one process
    training.undisturbed(tmp_path / "c", 2, "other_layout.py", str(path / dumps.STATE))
    whole = torch.load(tmp_path / "c" / "whole-0")
    alone = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    reader = checkpoint.FileSystemReader(path / dumps.STATE)
    checkpoint.load(alone, storage_reader=reader, no_dist=True)
    assert len(whole) == 12 + 36
    for other in (torch.load(tmp_path / "c" / "whole-1"), alone):
        assert other.keys() == whole.keys()
        assert all(torch.equal(other[name], whole[name]) for name in whole)
    # the parameters are those of a run that ended there
    there = reference(4, SHARDED[0], "6", *SHARDED[2:])
    for rank in range(4):
        with record.Record(tmp_path / "c", rank) as log:
            log.final(shards(whole, rank))
        assert training.Result(0, "", tmp_path / "c").final(rank) == there.final(rank)


@pytest.mark.long
def test_what_replica_sets_have_is_dumped_and_resumed(tmp_path, reference):
    """HSDP: rank 3 has what rank 1 had, and no record of theirs has it. The job that begins from
    the dump has replica sets too."""
    training.of_this_torch("hsdp")
    job = ("parallel.py", "10", "hsdp")
    place = tmp_path / "dumps"
    both = {"TASKD_DUMP_PATH": str(place), "TASKD_RESUME_PATH": ""}
    result = dying(tmp_path / "a", 4, *job, faults="1:4:tail:kill", **both)
    assert result.status == 75
    # rank 0 or 2, whichever has not updated yet
    recorded = r"the state of each replica set is recorded \(rank [02]; rank 3\)"
    assert re.search(recorded, result.log("manager.log"))
    both["TASKD_RESUME_PATH"] = str(place)
    again = dying(tmp_path / "b", 4, *job, faults="2:6:reduced:kill", **both)
    assert again.status == 75 and sorted(p.name for p in place.iterdir()) == ["step-4", "step-6"]
    dumps.check(dumps.read(place / "step-6"))
    assert "are equal on ranks 1,3" in again.log("worker-3.log")
    assert_goes_on(tmp_path / "c", place, 4, *job, reference=reference(4, *job), step=6)
    # torch reads whole tensors, those of a run that ended there
    reader = checkpoint.FileSystemReader(place / "step-6" / dumps.STATE)
    saved = reader.read_metadata().state_dict_metadata
    whole = {n: torch.zeros(s.size) for n, s in saved.items() if n.startswith("model.")}
    checkpoint.load(whole, storage_reader=reader, no_dist=True)
    there = reference(4, "parallel.py", "6", "hsdp")
    (tmp_path / "d").mkdir()
    for rank in range(4):
        with record.Record(tmp_path / "d", rank) as log:
            log.final(shards(whole, rank % 2, 2))
        assert training.Result(0, "", tmp_path / "d").final(rank) == there.final(rank)


@pytest.mark.long
def test_a_loader_goes_on_in_the_middle_of_an_epoch(tmp_path, reference):
    arguments = ("random", "3")
    result = dying(tmp_path / "a", 2, "loader.py", *arguments, faults="1:8:tail:kill")
    assert result.status == 75
    place = tmp_path / "a" / "dumps"
    # the job that begins from it ends in the same way, and its dump stands beside the first
    both = {"TASKD_DUMP_PATH": str(place), "TASKD_RESUME_PATH": str(place)}
    again = dying(tmp_path / "b", 2, "loader.py", *arguments, faults="0:11:tail:kill", **both)
    assert again.status == 75 and sorted(p.name for p in place.iterdir()) == ["step-11", "step-8"]
    dumps.check(dumps.read(place / "step-8"))
    assert_goes_on(
        tmp_path / "c",
        place,
        2,
        "loader.py",
        *arguments,
        reference=reference(2, "loader.py", *arguments),
        step=11,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "job", "what"),
    [
        ("200k", (2, "mlp.py", "8"), "rank 0 could not save the state"),
        ("300k", (4, *SHARDED), "could not save its ranks' records"),
        ("1000k", (4, *SHARDED), "could not save the state"),
    ],
    ids=["replicas", "records", "shards"],
)
def test_a_full_disk_leaves_older_dumps_as_they_are(tmp_path, size, job, what):
    place = tmp_path / "dumps"
    place.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "taskd-test", str(place)]
        ).returncode
    ):
        pytest.skip("may not mount")
    try:
        old = place / "step-1"
        (old / dumps.RECORDS).mkdir(parents=True)
        (old / dumps.RECORDS / "rank-0").write_bytes(b"x" * 1000)
        file = dumps.describe(old, old / dumps.RECORDS / "rank-0")
        dumps.seal(old.rename(place / ".partial"), 1, 4, [file])
        result = dying(tmp_path / "a", *job, faults="1:6:tail:kill", TASKD_DUMP_PATH=str(place))
        assert result.status == 1 and what in training.paragraph(result)
        assert "No space left on device" in training.paragraph(result)
        assert [p.name for p in place.iterdir()] == ["step-1"], "something was left"
        dumps.check(dumps.newest(place))
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_what_is_no_dump_or_damaged_is_refused(tmp_path):
    good = tmp_path / "step-3"
    (good / dumps.RECORDS).mkdir(parents=True)
    files = dumps.write_records(good, [(0, 1, b"zero"), (1, 1, b"one")])
    work = good.rename(tmp_path / ".step-3.partial")
    with pytest.raises(dumps.BadDump, match="contains none"):
        dumps.newest(tmp_path)  # not sealed
    with pytest.raises(dumps.BadDump, match="the same directory on all nodes"):
        dumps.seal(work, 3, 2, [*files, ("state/x", 5, "ab")])
    sealed = dumps.seal(work, 3, 2, files)
    assert sealed == good and dumps.newest(tmp_path) == dumps.newest(good) == dumps.Found(
        good,
        3,
        2,
        frozenset({0, 1}),
        frozenset({"records/rank-0", "records/rank-1"}),
        json.loads((good / dumps.MANIFEST).read_text())["number"],
    )
    (tmp_path / "step-9").mkdir()
    manifest = json.loads((good / dumps.MANIFEST).read_text()) | {
        "step": 9,
        "files": [["gone", 1, "ab"]],
    }
    (tmp_path / "step-9" / dumps.MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(dumps.BadDump, match="was changed"):
        dumps.read(tmp_path / "step-9")
    assert dumps.newest(tmp_path).step == 3, "an incomplete one counts"
    (good / dumps.RECORDS / "rank-1").write_bytes(bytes([1]) + b"eno")
    with pytest.raises(dumps.BadDump, match="does not match its checksum"):
        dumps.check(dumps.read(good))
    shutil.rmtree(good / dumps.RECORDS)
    with pytest.raises(dumps.BadDump, match="missing"):
        dumps.read(good)


@pytest.mark.parametrize("clock", ["stands", "runs"])
def test_the_newest_dump_is_that_made_last(tmp_path, monkeypatch, clock):
    """A job that goes back saves steps that are lower than those it has left. Neither a clock that
    is set back nor a dump that cannot be read changes that."""
    if clock == "stands":
        monkeypatch.setattr(dumps.time, "time_ns", lambda: 0)
    for step in (5, 9, 7, 9):
        work = tmp_path / ".partial"
        dumps.seal(work, step, 1, dumps.write_records(work, [(0, 1, b"zero")]))
        assert dumps.newest(tmp_path).step == step
    torn = tmp_path / "step-9.2" / dumps.RECORDS / "rank-0"
    content = torn.read_bytes()
    torn.unlink()
    assert dumps.newest(tmp_path).step == 7
    work = tmp_path / ".partial"
    made = dumps.seal(work, 6, 1, dumps.write_records(work, [(0, 1, b"zero")]))
    torn.write_bytes(content)
    assert dumps.newest(tmp_path).path == made
    dumps.clear(tmp_path, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"step-6", "step-9.2"}
    dumps.clear(tmp_path, 1, tmp_path / "step-9.2")
    assert {path.name for path in tmp_path.iterdir()} == {"step-6", "step-9.2"}


def test_a_dump_under_a_secret_is_taken_up_with_that_secret_only(tmp_path, monkeypatch):
    monkeypatch.setenv("TASKD_SECRET", "one")
    work = tmp_path / ".partial"
    path = dumps.seal(work, 3, 1, dumps.write_records(work, [(0, 1, b"zero")]))
    assert dumps.newest(path).step == 3
    monkeypatch.setenv("TASKD_SECRET", "another")
    with pytest.raises(dumps.BadDump, match="TASKD_SECRET other than"):
        dumps.newest(path)
    monkeypatch.delenv("TASKD_SECRET")
    with pytest.raises(dumps.BadDump, match="set TASKD_SECRET"):
        dumps.newest(path)


@pytest.mark.parametrize("name", ["../elsewhere", "/etc/hostname", "state/../../x"])
def test_files_outside_of_a_dump_are_not_looked_at(tmp_path, name):
    (tmp_path / "elsewhere").write_text("x")
    path = tmp_path / "step-1"
    path.mkdir()
    manifest = {
        "version": dumps.VERSION,
        "step": 1,
        "world_size": 1,
        "keyed": False,
        "number": 1,
        "files": [[name, 1, "ab"]],
    }
    (path / dumps.MANIFEST).write_text(
        json.dumps(manifest | {"digest": dumps._digest(manifest, dumps.PUBLIC)})
    )
    with pytest.raises(dumps.BadDump, match="is outside"):
        dumps.read(path)
