"""taskd's agent under an unmodified msrun. Real: msrun, MindSpore, its scheduler and collectives
(MCCL on CPU), the manager, all kills. Nothing is substituted."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from launching import HERE, LIMIT, Launch, free_port, gone

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None,
    reason="mindspore is not installed: make test-mindspore runs these",
)
WORKERS = 3


def expected(steps: int) -> str:
    """What the ranks have summed after so many steps, in float32 as they do."""
    total = np.float32(0)
    for step in range(steps):
        total += np.float32(sum(rank + step for rank in range(WORKERS)))
    return str(total)


@pytest.fixture
def start(tmp_path):
    made = []

    def launch(*arguments: str) -> Launch:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        command = [str(Path(sys.executable).parent / "msrun"), f"--worker_num={WORKERS}"]
        command += [f"--local_worker_num={WORKERS}", f"--master_port={free_port()}"]
        command += ["--log_dir=log", "--join=True", str(HERE / "scripts" / "collective.py")]
        made.append(
            Launch(
                folder,
                WORKERS,
                [*command, *arguments],
                MS_ENABLE_TFT="{RSC:1}",
                MS_CPU_COMM_OP_TIMEOUT="15",
                MS_NODE_TIMEOUT="10",
                GLOG_v="3",
                PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            )
        )
        return made[-1]

    yield launch
    for job in made:
        job.close()


def schedulers(job: Launch) -> list[int]:
    """msrun's children that are MindSpore's scheduler."""
    found = []
    for task in Path(f"/proc/{job.process.pid}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"MS_ROLE=MS_SCHED" in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
    return found


@pytest.mark.timeout(280)
@pytest.mark.parametrize("kills", [1, pytest.param(4, marks=pytest.mark.long)])
def test_all_ranks_restart_on_the_same_scheduler_each_time(start, kills):
    """A naive agent manages one of eight: the first collective of an early rank fails."""
    job, old = start("100"), ()
    for kill in range(kills):
        pids = job.reach(2, old)
        scheduler = schedulers(job)
        os.kill(random.choice(pids), signal.SIGKILL)
        old = (*old, *pids)
        again = job.reach(0, old)
        assert schedulers(job) == scheduler
        assert all(gone(pid) for pid in pids) and not set(again) & set(old)
        assert (job.folder / "log" / f"worker_0.{kill}.log").exists()
    assert job.end() == (0, 0), job.output
    assert job.results() == [expected(100)] * WORKERS


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_dead_scheduler_is_replaced_under_ranks_that_train(start):
    """They survive MS_NODE_TIMEOUT, 10 s here; a later death is repaired on the new one."""
    job = start("240")
    pids = job.reach(2)
    (scheduler,) = schedulers(job)
    os.kill(scheduler, signal.SIGKILL)
    assert sorted(job.reach(230)) == sorted(pids)
    (other,) = schedulers(job)
    assert other != scheduler
    os.kill(pids[0], signal.SIGKILL)
    job.reach(2, tuple(pids))
    assert job.end() == (0, 0), job.output
    assert job.results() == [expected(240)] * WORKERS


@pytest.mark.long
@pytest.mark.timeout(200)
def test_the_documented_shell_lines_with_the_example(tmp_path):
    """With a pod's variables `train_start.sh` starts manager.py and msrun; a restarted job goes on
    from its own checkpoint."""
    examples = HERE.parents[1] / "examples"
    shutil.copy(examples / "mindspore" / "train.py", tmp_path)
    script = HERE.parents[1] / "scripts" / "train_start.sh"
    binaries = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    job = Launch(
        tmp_path,
        WORKERS,
        ["bash", str(script), ".", "out", "train.py", "300"],
        manager=False,
        PATH=binaries,
        MS_SCHED_HOST="127.0.0.1",
        MS_SCHED_PORT=str(free_port()),
        MS_WORKER_NUM=str(WORKERS),
        MS_LOCAL_WORKER=str(WORKERS),
        MS_NODE_RANK="0",
        POD_IP="127.0.0.1",
        GLOG_v="3",
    )
    manager = (examples / "manager.py").read_text().replace("per_node = 4", f"per_node = {WORKERS}")
    (tmp_path / "manager.py").write_text(manager)
    log = tmp_path / "out" / "msrun_log" / "worker_0.log"
    try:
        job.wait((tmp_path / "checkpoint.ckpt").exists)
        pid = int(log.read_text().split("pid ")[1].split()[0])
        os.kill(pid, signal.SIGKILL)
        assert job.process.wait(LIMIT) == 0, job.output
    finally:
        job.close()
    assert "rank 0 goes on at step" in log.read_text()
    assert "rank 0 has trained 300 steps" in log.read_text()
    assert f"pid {pid} " in log.with_name("worker_0.0.log").read_text()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_scheduler_without_npus_is_a_pod_of_its_own(tmp_path):
    """As in most public jobs of several nodes. It has the address that the worker looks for, the
    scheduler and manager.py."""
    examples, pods = HERE.parents[1] / "examples", []
    script = HERE.parents[1] / "scripts" / "train_start.sh"
    manager = (examples / "manager.py").read_text().replace("per_node = 4", f"per_node = {WORKERS}")
    shared = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MS_SCHED_HOST": "127.0.0.2",  # not this machine's, to msrun
        "MS_SCHED_PORT": str(free_port()),
        "MS_WORKER_NUM": str(WORKERS),
        "MS_LOCAL_WORKER": str(WORKERS),
        "MS_NODE_RANK": "0",
        "TASKD_PORT": str(free_port()),
        "TASKD_SECRET": "tests",
        "GLOG_v": "3",
    }
    own = [("127.0.0.2", "false", "MS_SCHED"), ("127.0.0.1", "true", "MS_WORKER")]
    try:
        for number, (ip, npus, role) in enumerate(own):
            folder = tmp_path / str(number)
            folder.mkdir()
            shutil.copy(examples / "mindspore" / "train.py", folder)
            variables = {**shared, "POD_IP": ip, "NPU_POD": npus, "MS_ROLE": role}
            command = ["bash", str(script), ".", "out", "train.py", "300"]
            pods.append(Launch(folder, WORKERS, command, manager=False, **variables))
            (folder / "manager.py").write_text(manager)
        log = tmp_path / "1" / "out" / "msrun_log" / "worker_0.log"
        assert pods[1].process.wait(LIMIT) == 0, pods[1].output
        assert pods[0].process.wait(LIMIT) == 0, pods[0].output
    finally:
        for pod in pods:
            pod.close()
    assert "rank 0 has trained 300 steps" in log.read_text()


@pytest.mark.long
@pytest.mark.timeout(200)
def test_msruns_exit_status_is_the_workers(start):
    job = start("3", "7")
    assert job.end() == (7, 1), job.output
    assert "exit status 7" in job.output
