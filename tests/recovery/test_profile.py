"""Light profiling of a real job: what ranks write, which of them makes the others wait, and what
a replacement and the documented file have to do with it."""

from __future__ import annotations

import json
import time

import pytest
import training

from taskd.messages.to_rank import RANGES
from taskd.profiling import merging

SLOW = 1


def kinds(profiles, rank):
    files = merging.ranks(profiles).get(rank, [])
    return {(each["kind"], each["name"]) for each in merging.ranges(files)}


def size(profiles):
    return sum(f.stat().st_size for files in merging.ranks(profiles).values() for f in files)


@pytest.mark.long
def test_a_slow_rank_is_named_and_its_replacement_is_profiled(tmp_path):
    """The switch is the documented file, which the manager follows, and an operator."""
    switch = tmp_path / "datatrace-config" / "profilingSwitch"
    switch.parent.mkdir()
    switch.write_text(json.dumps(dict.fromkeys(RANGES, "on")))
    profiles = tmp_path / "profiles" / "job"
    with training.start(
        tmp_path / "job",
        3,
        "slow.py",
        "100000",
        str(SLOW),
        "20",
        TASKD_PROFILING_SWITCH=str(switch),
        TASKD_PROFILING_PATH=str(tmp_path / "profiles"),
    ) as job:

        def log():
            return job.result().log("manager.log")

        job.until("a rank was named", lambda: "makes the others wait" in log())
        assert f"rank {SLOW} makes the others wait" in log()
        assert "rank 0 makes" not in log() and "rank 2 makes" not in log()
        wanted = {
            ("Step", "step"),
            ("DataLoader", "next"),
            ("FP", "forward DistributedDataParallel"),
            ("FP", "backward"),
            ("CommunicationOperator", "all_reduce"),
            ("CommunicationOperator", "gradients"),
        }
        job.until("all ranges were written", lambda: wanted <= kinds(profiles, 2))
        assert ("SaveCheckpoint", "torch.save") in kinds(profiles, 0)
        before = len(merging.ranks(profiles)[2])
        job.kill(2)
        job.until("the replacement wrote its own", lambda: len(merging.ranks(profiles)[2]) > before)
        # the last word counts, whoever has it
        assert job.taskd("profile", "off").stdout == "ranks profile nothing\n"

        def silent():
            known = size(profiles)
            time.sleep(7.0)  # they write every 5 s
            return size(profiles) == known

        job.until("ranks wrote nothing more", silent)
        known = size(profiles)
        switch.write_text('{"Step": "on"}')
        job.until("the file was followed", lambda: size(profiles) > known)
        switch.write_text("{")
        job.until("a broken file was refused", lambda: "nothing is changed" in log())
        traced = job.taskd("profile", "trace", str(profiles), "--out", str(tmp_path / "trace"))
        assert " of 3 ranks" in traced.stdout, traced.stderr
        (job.directory / "stop").touch()
        assert job.end().status == 0
