"""The first processes of ranks, forked from one that has imported torch: nobody can tell, but by
the time that it takes."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
import training

SCRIPT = """
import json, os, random, sys
rank, life = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
torch_was_there = "torch" in sys.modules
import numpy, torch, torch.distributed as dist
dist.init_process_group("gloo")
one = torch.ones(1)
dist.all_reduce(one)
command = open("/proc/self/cmdline").read().strip("\\0").split("\\0")
drawn = (torch.initial_seed(), random.random(), numpy.random.rand())
facts = {"warm": torch_was_there, "command": command, "sum": one.item(), "drawn": drawn, "stdin": os.readlink("/proc/self/fd/0")}
open(f"facts-{rank}-{life}", "w").write(json.dumps(facts))
dist.barrier()
if life == "0" and rank == "1":
    raise ValueError("of the user's")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("fork", ["on", *training.long("off")])
def test_an_unprotected_script(tmp_path, fork):
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "train.py").write_text(SCRIPT)
    result = training.launch(directory, 2, "train.py", "--lr", "0.1", TASKD_FORK=fork)
    assert result.status == 0, result.output[-3000:]
    facts = [
        json.loads((directory / f"facts-{rank}-{life}").read_text())
        for rank in (0, 1)
        for life in (0, 1)
    ]
    drawn = [number for f in facts for number in f.pop("drawn")]
    assert len(set(drawn)) == 12
    assert all(f == facts[0] for f in facts)
    assert facts[0]["warm"] is (fork == "on") and facts[0]["sum"] == 2.0
    assert facts[0]["command"][-3:] == ["train.py", "--lr", "0.1"]
    assert facts[0]["stdin"] == os.readlink("/proc/self/fd/0")
    lines = result.output.splitlines()
    (raised,) = [i for i, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    assert "train.py" in lines[raised + 1] and lines[raised + 3].endswith(
        "ValueError: of the user's"
    ), lines[raised : raised + 5]


def test_ranks_end_with_a_launcher_that_is_killed(tmp_path):
    """Also one that is stopped, and one that waits for it in a collective."""
    with training.start(tmp_path / "job", 2, "steered.py", "1000000") as job:
        job.trains()
        job.ask(1, "begin", "stop")
        job.until("rank 1 was stopped", lambda: state(job.pid(1)) == "T")
        pids = [job.pid(rank) for rank in range(2)]
        job._process.kill()
        job._process.wait()
        end = time.monotonic() + 30
        while not all(state(pid) in "ZX-" for pid in pids):
            assert time.monotonic() < end, [state(pid) for pid in pids]
            time.sleep(0.01)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "-"
