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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from launching import LIMIT, Launch, train

from taskd.control import Control, ControlError

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


@pytest.mark.long
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


def test_a_memory_fault_and_a_kill_in_pynative_mode_device_and_collectives_substituted(
    start: Start, undisturbed: list[str]
) -> None:
    """The first is repaired in its process, for the second the zygote forks one, once that has
    imported mindspore. Its predecessor's log goes on."""
    more = {"ENABLE_RESTART_FAULT_PROCESS": "on", "HOLD": "20"}
    job = start(3, "{TTP:1,UCE:1,ARF:1}", "pynative", "uce", 1, 10, **more)
    agent = job.folder / "taskd_log" / "agent-0.log"
    job.wait(lambda: agent.exists() and "zygote is ready" in agent.read_text())
    assert len(set(job.reach(20))) == 3 and (job.folder / "fault").exists()
    assert [len({pid for pid, _, _ in job.steps(r)}) for r in range(3)] == [1, 1, 1]
    (job.folder / "go").touch()
    killed = kill(job, 1, 20)
    job.wait(lambda: job.steps(1)[-1][0] != killed)
    new = job.steps(1)[-1][0]
    zygote = int(Path(f"/proc/{new}/stat").read_bytes().rpartition(b")")[2].split()[1])
    assert b"taskd.agent.ranks.zygote" in Path(f"/proc/{zygote}/cmdline").read_bytes()
    command = Path(f"/proc/{new}/cmdline").read_bytes().split(b"\0")
    assert command[1].endswith(b"train.py")
    os.kill(zygote, signal.SIGKILL)  # the rank outlives it
    assert checksums(job) == undisturbed
    assert {pid for pid, _, _ in job.steps(1)} == {killed, new}
    assert sorted(p.name for p in (job.folder / "log").glob("worker_1*")) == ["worker_1.log"]


@pytest.mark.long
def test_a_memory_fault_is_repaired_in_graph_mode_device_substituted(start: Start) -> None:
    """With MCCL's collectives, which a repair leaves alone: the fault is between two steps."""
    plain = checksums(start(2, "{UCE:1}", "graph"))
    job = start(2, "{UCE:1}", "graph", "uce", 1, 10)
    assert checksums(job) == plain
    assert (job.folder / "fault").exists()


@pytest.mark.long
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


class Operator:
    """Asks for something while all ranks are held after step 20, and lets them go on once they are
    ordered to pause."""

    def __init__(self, job: Launch) -> None:
        self.job, self.go = job, job.folder / "go"
        self.agent = job.folder / "taskd_log" / "agent-0.log"

    def asks(self, request: Callable[[Control], str]) -> str:
        self.job.reach(20)
        before = self._ordered()
        with Control(self.job.environment) as control, ThreadPoolExecutor(1) as thread:
            answer = thread.submit(request, control)
            self.job.wait(lambda: answer.done() or self._ordered() > before)
            self.go.touch()
            return answer.result(LIMIT)

    def _ordered(self) -> int:
        return self.agent.read_text().count("pause before step")


@pytest.fixture
def held(start: Start) -> Launch:
    more = {"ENABLE_RESTART_FAULT_PROCESS": "on", "TASKD_FAULT_REPORTS": "on", "HOLD": "20"}
    return start(3, "{TTP:1,UCE:1,ARF:1}", "pynative", **more)


@pytest.mark.long
def test_network_cards_are_switched_in_a_pause_device_and_collectives_substituted(
    held: Launch, undisturbed: list[str]
) -> None:
    said = Operator(held).asks(lambda control: control.switch_nics({0: True, 2: False}))
    assert said.startswith("done: all 3 ranks")
    for rank in range(3):
        assert (held.folder / f"nics.{rank}").read_text() == "[0, 2] [True, False]"
    assert checksums(held) == undisturbed
    assert [len({pid for pid, _, _ in held.steps(r)}) for r in range(3)] == [1, 1, 1]


@pytest.mark.long
def test_devices_are_tested_in_a_pause_device_and_collectives_substituted(
    held: Launch, undisturbed: list[str]
) -> None:
    """One whose voltage is not put back gets another process."""
    (held.folder / "stress.1").write_text("4")
    with pytest.raises(ControlError, match="rank 1: the voltage was not put back"):
        Operator(held).asks(lambda control: control.stress_test([1, 2], ["p2p"]))
    assert (held.folder / "tested.1").read_text() == "hccs MainThread"
    assert (held.folder / "tested.2").exists() and not (held.folder / "tested.0").exists()
    assert checksums(held) == undisturbed
    assert [len({pid for pid, _, _ in held.steps(r)}) for r in range(3)] == [1, 2, 1]


@pytest.mark.long
def test_a_device_that_is_faulty_ends_a_job_of_one_node_device_and_collectives_substituted(
    held: Launch,
) -> None:
    (held.folder / "stress.0").write_text("2")
    with pytest.raises(ControlError, match="rank 0: the device is faulty"):
        Operator(held).asks(lambda control: control.stress_test([0]))
    assert held.process.wait(LIMIT) != 0
