"""What a rank has started ends with it: in the job, before the replacement needs its port, and at
the job's end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import training

from tests.lab import warm

STEPS = "200"  # 10 s at least, in which processes die and start on a busy machine
KINDS = "plain,session,daemon,manager,server"


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


@pytest.mark.parametrize("fork", ["on", *training.long("off")])
def test_children_end_with_their_rank(tmp_path, reference, fork):
    """Before its replacement needs the port that one of them holds; who is to live on does."""
    directory, lives = tmp_path / "job", {0: 0, 1: 0}
    env = {"TASKD_FORK": fork, "PORT": str(training.free_port())}
    with training.start(directory, 2, "household.py", STEPS, f"{KINDS},free", **env) as job:
        for rank, how in (
            (1, signal.SIGKILL),
            (0, signal.SIGSEGV),
            (1, signal.SIGSTOP),
            (1, signal.SIGKILL),
        ):
            job.trains()
            job.kill(rank, how)
            (incident,) = job.repaired()
            assert len(incident["faults"]) == 1, incident
            dead, other = (of(directory, r, lives[r]) for r in (rank, 1 - rank))
            assert not [kind for kind, pid in dead.items() if alive(pid)]
            assert [kind for kind, pid in other.items() if alive(pid)] == KINDS.split(",")
            lives[rank] += 1
        result = job.end()
    free = [pid(directory, "free", rank, n) for rank in lives for n in range(lives[rank] + 1)]
    try:
        assert all(alive(p) for p in free)
    finally:
        for p in free:
            os.kill(p, signal.SIGKILL)
    training.assert_equal(result, reference(2, "household.py", STEPS, "none"), 2)
    living = [p for rank in lives for p in of(directory, rank, lives[rank]).values()]
    assert not [p for p in living if alive(p)]
    assert "killed what a dead rank had started" in result.log("agent-0.log")


def test_a_pipe_ends_with_the_job(tmp_path):
    """`taskd run … | tee` waits for the last one that holds the pipe."""
    script = [str(training.SCRIPTS / "household.py"), str(tmp_path), "5", KINDS]
    env = training.environment(tmp_path, PORT=str(training.free_port()))
    ours, theirs = os.pipe()
    arguments = ["run", "--nproc_per_node", "2", *script]
    job = warm.popen("launcher", arguments, env, tmp_path, theirs)
    os.close(theirs)
    with open(ours) as pipe:
        output = pipe.read()
    assert job.wait(training.LIMIT) == 0, output[-3000:]
