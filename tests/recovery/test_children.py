"""What a rank has started ends with it: in the job, before the replacement needs its port, and at
the job's end."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import training

STEPS = "200"  # 10 s at least, in which processes die and start on a busy machine
KINDS = "plain,session,daemon,manager"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def pid(directory: Path, kind: str, rank: int, incarnation: int) -> int:
    return int((directory / f"{kind}-{rank}-{incarnation}").read_text())


def of(directory: Path, rank: int, incarnation: int) -> dict[str, int]:
    return {kind: pid(directory, kind, rank, incarnation) for kind in KINDS.split(",")}


@pytest.mark.parametrize("fork", ["on", pytest.param("off", marks=pytest.mark.long)])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP])
def test_children_end_with_their_rank(tmp_path, reference, how, fork):
    directory = tmp_path / "job"
    with training.start(directory, 2, "household.py", STEPS, KINDS, TASKD_FORK=fork) as job:
        job.trains()
        job.kill(1, how)
        job.repaired()
        dead, other = of(directory, 1, 0), of(directory, 0, 0)
        assert not [kind for kind, pid in dead.items() if alive(pid)]
        assert [kind for kind, pid in other.items() if alive(pid)] == KINDS.split(",")
        job.kill(1)  # the replacement's
        job.repaired()
        assert not [kind for kind, pid in of(directory, 1, 1).items() if alive(pid)]
        result = job.end()
    training.assert_equal(result, reference(2, "household.py", STEPS, "none"), 2)
    living = [*other.values(), *of(directory, 1, 2).values()]
    assert not [pid for pid in living if alive(pid)]
    assert "killed what a dead rank had started" in result.log("agent-0.log")


def test_a_port_is_free_for_the_replacement(tmp_path, reference):
    with training.start(
        tmp_path / "job", 2, "household.py", STEPS, "server", PORT=str(training.free_port())
    ) as job:
        for rank in (1, 0, 1):
            job.trains()
            job.kill(rank)
            (incident,) = job.repaired()
            assert len(incident["faults"]) == 1, incident
        result = job.end()
    training.assert_equal(result, reference(2, "household.py", STEPS, "none"), 2)


def test_a_process_that_is_to_live_on(tmp_path):
    directory = tmp_path / "job"
    with training.start(directory, 2, "household.py", STEPS, "free") as job:
        job.trains()
        job.kill(0)
        job.repaired()
        result = job.end()
    assert result.status == 0, result.output[-3000:]
    free = [pid(directory, "free", rank, life) for rank, life in ((0, 0), (0, 1), (1, 0))]
    try:
        assert all(alive(p) for p in free)
    finally:
        for p in free:
            os.kill(p, signal.SIGKILL)


def test_a_pipe_ends_with_the_job(tmp_path):
    """`taskd run … | tee` waits for the last one that holds the pipe."""
    directory = tmp_path / "job"
    directory.mkdir()
    command = [
        *(str(training.BIN / "taskd"), "run", "--nproc_per_node", "2"),
        *(str(training.SCRIPTS / "household.py"), str(directory), "5", KINDS),
    ]
    done = subprocess.run(
        command,
        cwd=directory,
        env=training.environment(directory),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=training.LIMIT,
    )
    assert done.returncode == 0, done.stdout[-3000:]
