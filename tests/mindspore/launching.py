"""Starts a manager and a launcher of MindSpore's kind, and reads what their workers wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "benchmarks"))
from ports import free_port

from taskd.adaptor.mindio import alias

LIMIT = 100.0  # seconds
MANAGER = """
import sys
from taskd.api.taskd_manager_api import init_taskd_manager, start_taskd_manager
init_taskd_manager({"job_id": None, "node_nums": 1, "proc_per_node": int(sys.argv[1])})
raise SystemExit(0 if start_taskd_manager() else 1)
"""

# the guides' variables for retry, recover-in-place and dump
FAULT_TOLERANT = {
    "PROCESS_RECOVER": "on",
    "ELASTIC_PROCESS_RECOVER_ENABLE": "1",
    "MINDIO_FOR_MINDSPORE": "1",
    "MS_TFT_IP": "127.0.0.1",
    "MS_TFT_PORT": "8000",
    "MS_CPU_COMM_OP_TIMEOUT": "15",
    "MS_NODE_TIMEOUT": "10",
    "GLOG_v": "3",
}


class Launch:
    """A job in `folder`: its manager, and the launcher that `command` starts."""

    def __init__(
        self, folder: Path, workers: int, command: list[str], manager: bool = True, **settings: str
    ) -> None:
        self.folder, self.workers = folder, workers
        ours = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "MS_", "RANK"))}
        environment = {
            **ours,
            "OMP_NUM_THREADS": "1",
            "TASKD_PORT": str(free_port()),
            "TASKD_PROCESS_ENABLE": "on",
            "PYTHONUNBUFFERED": "1",
            **settings,
        }
        self.environment = environment
        (folder / "manager.py").write_text(MANAGER)
        self.manager = (
            subprocess.Popen(
                [sys.executable, "manager.py", str(workers)],
                cwd=folder,
                env=environment,
                stderr=subprocess.DEVNULL,
            )
            if manager
            else None
        )
        self._out = open(folder / "launcher.out", "wb")
        self.process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=self._out, stderr=subprocess.STDOUT
        )

    def steps(self, rank: int) -> list[tuple[int, int, str]]:
        """(pid, step, result) of each step that the rank has done."""
        path = self.folder / f"steps.{rank}"
        rows = path.read_text().splitlines() if path.exists() else []
        found = []
        for row in rows:
            pid, step, result = row.split(" ", 2)
            found.append((int(pid), int(step), result))
        return found

    def wait(self, what: Callable[[], object]) -> None:
        """Wait until `what()` is true. Raises AssertionError."""
        due = time.monotonic() + LIMIT
        while not what():
            assert time.monotonic() < due and self.process.poll() is None, self.output
            time.sleep(0.01)

    def reach(self, step: int, old: tuple[int, ...] = ()) -> list[int]:
        """Wait until processes other than `old` have done that step on all ranks; their pids."""

        def pids() -> list[int]:
            last = [(self.steps(rank) or [(0, -1, "")])[-1] for rank in range(self.workers)]
            return [pid for pid, reached, _ in last if reached >= step and pid not in old]

        self.wait(lambda: len(pids()) == self.workers)
        return pids()

    def end(self) -> tuple[int, int | None]:
        """Wait for the ends of the launcher and the manager; their exit statuses."""
        status = self.process.wait(LIMIT)
        return status, self.manager.wait(LIMIT) if self.manager is not None else None

    def results(self) -> list[str]:
        """The last result of each rank."""
        return [self.steps(rank)[-1][2] for rank in range(self.workers)]

    @property
    def output(self) -> str:
        return (self.folder / "launcher.out").read_text(errors="replace")

    def close(self) -> None:
        for process in (self.process, self.manager):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(20.0)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self._out.close()


def gone(pid: int) -> bool:
    """Whether the process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def train(
    folder: Path, workers: int, tft: str, steps: int, *arguments: object, **more: str
) -> Launch:
    """scripts/train.py under msrun. `tft`: MS_ENABLE_TFT; `arguments`: those after STEPS."""
    folder.mkdir(parents=True, exist_ok=True)
    alias.install(folder)
    command = [str(Path(sys.executable).parent / "msrun"), f"--worker_num={workers}"]
    command += [f"--local_worker_num={workers}", f"--master_port={free_port()}"]
    command += ["--log_dir=log", "--join=True", str(HERE / "scripts" / "train.py")]
    return Launch(
        folder,
        workers,
        [*command, *map(str, (steps, *arguments))],
        MS_ENABLE_TFT=tft,
        HOST_PORT=str(_port_range(workers)),
        PYTHONPATH=f"{folder}:{HERE.parents[1]}",
        PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **{**FAULT_TOLERANT, **more},
    )


def _port_range(ranks: int) -> int:
    """The first of as many free ports in a row."""
    while True:
        first = free_port()
        if first + ranks < 60_000:
            return first
