"""Jobs of a PyTorch script that knows mindio_ttp alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from taskd.adaptor.mindio import alias
from taskd.history.reading import repaired
from tests.lab import warm

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from ports import free_port

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "scripts" / "pretrain.py"
RANKS, STEPS, LIMIT = 4, 60, 100.0
ALWAYS = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
# model-parallel ranks, replicas
LAYOUTS = {"2x2": (2, 2), "sharded": (1, 2), "single": (1, 1)}


class Job:
    """A run of the script in `folder`. `fault`: what the script does to itself, see there."""

    def __init__(
        self,
        folder: Path,
        layout: str,
        *fault: object,
        strategy: str = "",
        script: Path = SCRIPT,
        steps: int = STEPS,
        **settings: str,
    ) -> None:
        self.port = free_port()
        self.out = folder / "out"
        self.out.mkdir(parents=True)
        alias.install(folder)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "MINDX"))}
        more = ["--recover-strategy", strategy] if strategy else []
        arguments = [*LAYOUTS[layout], steps, self.out, *fault]
        self._log = open(folder / "log", "wb")
        run = [
            *("run", "--port", str(self.port), *more),
            *("--log-path", str(folder / "taskd_log"), f"--nproc_per_node={RANKS}"),
            *(str(script), *map(str, arguments)),
        ]
        env = {**clean, **ALWAYS, "PYTHONPATH": f"{folder}:{ROOT}", **settings}
        self.process: subprocess.Popen[bytes] | warm.Process
        if warm.suits(env):
            self.process = warm.popen("launcher", run, env, folder, self._log.fileno())
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "taskd.cli", *run],
                cwd=folder,
                env=env,
                stdout=self._log,
                stderr=subprocess.STDOUT,
            )
        self.folder = folder

    def losses(self, rank: int) -> dict[int, str]:
        """The last loss of each step."""
        path = self.out / f"losses-{rank}"
        rows = [row.split() for row in path.read_text().splitlines()] if path.exists() else []
        return {int(row[0]): row[1] for row in rows if len(row) == 3}

    def wait(self, condition: Callable[[], bool]) -> None:
        due = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < due and self.process.poll() is None, self.log
            time.sleep(0.002)

    def begun(self, step: int) -> None:
        """Wait until every rank has begun `step`."""
        self.wait(lambda: all(max(self.losses(r), default=-1) >= step for r in range(RANKS)))

    def kill(self, rank: int, step: int) -> None:
        """Kill the rank's present process once the rank has begun `step`."""
        self.wait(lambda: max(self.losses(rank), default=-1) >= step)
        os.kill(int((self.out / f"pid-{rank}").read_text()), signal.SIGKILL)

    def kill_manager(self) -> None:
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1:2]
                command = (entry / "cmdline").read_bytes()
                if parent == [str(self.process.pid)] and b"taskd.manager" in command:
                    os.kill(int(entry.name), signal.SIGKILL)
                    return
        raise AssertionError("the job has no manager")

    def results(self) -> list[tuple[dict[int, str], str]]:
        """Wait for the end; every rank's losses, and what it has trained."""
        assert self.process.wait(LIMIT) == 0, self.log
        return [(self.losses(r), (self.out / f"end-{r}").read_text()) for r in range(RANKS)]

    def incidents(self) -> list[dict[str, object]]:
        return repaired(self.folder / "taskd_log")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()


Start = Callable[..., Job]
