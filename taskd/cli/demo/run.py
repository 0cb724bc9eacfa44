"""The demo's jobs: starts one, reads its ranks' records meanwhile, kills a rank, cleans up."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import taskd
from taskd import settings, start
from taskd.cli.demo import records

# seconds without a new step after which a run is given up; a start takes 10 on two busy cores
SILENCE = 120.0
LOOK = 0.05  # seconds between two looks at the records
# variables of a cluster's shell that would disturb the demo: ranks, addresses, and every setting
# that taskd reads
_SHED = ("TASKD_", "MASTER_", "MINDX_", "TORCHELASTIC_")
_SHED_EXACT = {
    "RANK",
    "LOCAL_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    *settings.PARAMETERS,
}


class Broken(RuntimeError):
    """A run did not finish; the text says how it stopped."""


class Run:
    """One run of train.py with `ranks` ranks. A context manager that ends what still runs. `kills`:
    how many faults it is to survive, None without taskd."""

    def __init__(self, directory: Path, ranks: int, steps: int, kills: int | None) -> None:
        directory.mkdir()
        self.directory, self.ranks, self.steps = directory, ranks, steps
        self.output = directory / "output.txt"
        self.logs = directory / "log"
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(_SHED) and k not in _SHED_EXACT
        }
        path = os.environ.get("PYTHONPATH", "")
        package = str(Path(taskd.__file__).resolve().parent.parent)
        environment.update(
            PYTHONPATH=os.pathsep.join(
                [package, *(os.path.abspath(p) for p in path.split(os.pathsep) if path)]
            ),
            OMP_NUM_THREADS="1",
            MINDX_TASK_ID=f"demo-{os.getpid()}-{secrets.token_hex(4)}",
            TASKD_SECRET=secrets.token_hex(16),
            TASKD_FAULT_INJECTION="on",
            TASKD_PORT=os.environ.get("TASKD_PORT") or str(_free_port()),
            TASKD_LOG_PATH=str(self.logs),
        )
        command = [
            *(
                start.command("taskd.cli", "run")
                if kills is not None
                else start.command("torch.distributed.run")
            ),
            "--standalone",
            "--nproc_per_node",
            str(ranks),
            "--max-restarts",
            str(kills or 0),
        ]
        command += [
            "-m",
            "taskd.cli.demo.train",
            "--out",
            str(directory),
            "--steps",
            str(steps),
        ]
        with open(self.output, "wb") as output:
            # a session of its own: Ctrl-C reaches this process, which ends it; and a directory of
            # its own: with -m the ranks import from it
            self._process = subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40.0)  # torchrun gives its ranks 30
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def read(self) -> list[records.Record]:
        return [records.read(self.directory, rank) for rank in range(self.ranks)]

    def watch(self, look: Callable[[list[records.Record]], None]) -> None:
        """Call `look` with the records, often, until the run has ended. Raises Broken if it
        fails."""
        heard, known = time.monotonic(), -1
        while True:
            code = self._process.poll()
            found = self.read()
            look(found)
            lines = sum(len(r.commits) + len(r.finals) for r in found)
            if lines != known:
                heard, known = time.monotonic(), lines
            if code is not None:
                if code:
                    raise Broken(f"it ended with status {code}")
                return
            if time.monotonic() - heard > SILENCE:
                raise Broken(f"no rank has finished a step in the last {SILENCE:.0f} s")
            # the records are files, which ranks under plain torchrun write too: nothing announces
            # a new line
            time.sleep(LOOK)

    def kill(self, rank: int) -> records.Kill:
        """Send SIGKILL to the current process of `rank`. Raises Broken if there is none."""
        kill = records.Kill(rank, self.read()[rank].commits[-1].pid, time.monotonic_ns())
        try:
            os.kill(kill.pid, signal.SIGKILL)
        except ProcessLookupError:
            raise Broken(f"rank {rank}, pid {kill.pid}, has ended by itself") from None
        return kill


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
