"""MindSpore's own Model.train and TrainFaultTolerance with taskd as mindio_ttp. Real: msrun,
MindSpore, its training loop and callback, its scheduler, the manager, all kills, the copies between
ranks, the checkpoint. Substituted, by scripts/host_device.py: the device's calls, and, in PyNative
mode, the collectives of the training step."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from launching import LIMIT, Launch, train

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mindspore") is None,
    reason="mindspore is not installed: make test-mindspore runs these",
)
STEPS = 40
Start = Callable[..., Launch]


def launch(folder: Path, workers: int, tft: str, *arguments: object, **more: str) -> Launch:
    return train(folder, workers, tft, STEPS, *arguments, **more)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Launch] = []

    def begin(workers: int, tft: str, *arguments: object, **more: str) -> Launch:
        made.append(launch(tmp_path / str(len(made)), workers, tft, *arguments, **more))
        return made[-1]

    yield begin
    for job in made:
        job.close()


def checksums(job: Launch) -> list[str]:
    """Wait for the end; each rank's parameters after the last step."""
    assert job.end() == (0, 0), job.output[-3000:]
    assert all(job.steps(rank)[-1][1] == STEPS for rank in range(job.workers))
    return [result.split()[0] for result in job.results()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    job = launch(tmp_path_factory.mktemp("undisturbed"), 3, "{TTP:1,UCE:1,ARF:1}", "pynative")
    try:
        return checksums(job)
    finally:
        job.close()


def kill(job: Launch, rank: int, step: int) -> int:
    """Kill the rank once it has done that step; its pid."""
    job.wait(lambda: (job.steps(rank) or [(0, 0, "")])[-1][1] >= step)
    pid = job.steps(rank)[-1][0]
    os.kill(pid, signal.SIGKILL)
    return pid


@pytest.mark.parametrize("rank", [0, 1])
def test_only_the_killed_rank_is_started_again_device_and_collectives_substituted(
    start: Start, undisturbed: list[str], rank: int
) -> None:
    job = start(3, "{TTP:1,UCE:1,ARF:1}", "pynative", ENABLE_RESTART_FAULT_PROCESS="on")
    killed = kill(job, rank, 10)
    assert checksums(job) == undisturbed
    pids = [{pid for pid, _, _ in job.steps(r)} for r in range(3)]
    assert [len(found) for found in pids] == [2 if r == rank else 1 for r in range(3)]
    assert killed in pids[rank]


def test_a_killed_rank_is_forked_by_the_zygote_device_and_collectives_substituted(
    start: Start, undisturbed: list[str]
) -> None:
    """Once that has imported mindspore. Its predecessor's log goes on."""
    job = start(3, "{TTP:1,UCE:1,ARF:1}", "pynative", ENABLE_RESTART_FAULT_PROCESS="on", HOLD="20")
    agent = job.folder / "taskd_log" / "agent-0.log"
    job.wait(lambda: agent.exists() and "zygote is ready" in agent.read_text())
    (job.folder / "go").touch()
    killed = kill(job, 1, 20)
    job.wait(lambda: job.steps(1)[-1][0] != killed)
    new = job.steps(1)[-1][0]
    zygote = int(Path(f"/proc/{new}/stat").read_bytes().rpartition(b")")[2].split()[1])
    assert b"taskd.agent.zygote" in Path(f"/proc/{zygote}/cmdline").read_bytes()
    command = Path(f"/proc/{new}/cmdline").read_bytes().split(b"\0")
    assert command[1].endswith(b"train.py")
    os.kill(zygote, signal.SIGKILL)  # the rank outlives it
    assert checksums(job) == undisturbed
    assert {pid for pid, _, _ in job.steps(1)} == {killed, new}
    assert sorted(p.name for p in (job.folder / "log").glob("worker_1*")) == ["worker_1.log"]


def test_a_memory_fault_is_repaired_in_pynative_mode_device_and_collectives_substituted(
    start: Start, undisturbed: list[str]
) -> None:
    job = start(3, "{TTP:1,UCE:1,ARF:1}", "pynative", "uce", 1, 10)
    assert checksums(job) == undisturbed
    assert [len({pid for pid, _, _ in job.steps(r)}) for r in range(3)] == [1, 1, 1]


def test_a_memory_fault_is_repaired_in_graph_mode_device_substituted(start: Start) -> None:
    """With MCCL's collectives, which a repair leaves alone: the fault is between two steps."""
    plain = checksums(start(2, "{UCE:1}", "graph"))
    job = start(2, "{UCE:1}", "graph", "uce", 1, 10)
    assert checksums(job) == plain
    assert (job.folder / "fault").exists()


def test_the_last_checkpoint_is_loaded_by_mindspore_device_substituted(start: Start) -> None:
    job = start(3, "{TTP:1}", "pynative")
    kill(job, 1, 10)
    began = time.monotonic()
    assert job.process.wait(LIMIT) != 0
    assert time.monotonic() - began < LIMIT
    (folder,) = (job.folder / "checkpoints").iterdir()
    assert folder.name.startswith("ttp_saved_checkpoints-step_")
    assert not folder.name.endswith("_tmp")
    (file,) = folder.rglob("*.ckpt")
    text = (
        "import sys, mindspore, numpy as np\n"
        "found = mindspore.load_checkpoint(sys.argv[1])\n"
        "print(int(found['step_num']), sorted(n for n in found if 'moment' in n))\n"
    )
    read = subprocess.run(
        [sys.executable, "-c", text, str(file)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=True,
    )
    step, _, moments = read.stdout.splitlines()[-1].partition(" ")
    assert int(step) == int(folder.name.rpartition("_")[2])
    assert "moments" in moments
