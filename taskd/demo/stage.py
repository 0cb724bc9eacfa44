"""The demo's jobs: starts one, reads its ranks' records while it trains, kills one of its
processes, cleans up."""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import taskd
from taskd import settings, start
from taskd.demo import records
from taskd.manager import journal

# seconds without a new step after which a run is given up; a start takes 10 on two busy cores
SILENCE = 120.0
LOOK = 0.02  # seconds between two looks at the records
# what a cluster's shell may have set and what would disturb the demo: ranks, addresses, and every
# setting that taskd reads
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


class Stage:
    """One run of train.py with `ranks` ranks. A context manager that ends what still runs."""

    def __init__(self, directory: Path, ranks: int, steps: int, protected: bool) -> None:
        directory.mkdir()
        self.directory, self.ranks, self.steps = directory, ranks, steps
        self.job = f"demo-{os.getpid()}-{secrets.token_hex(4)}"
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
            MINDX_TASK_ID=self.job,
            TASKD_SECRET=secrets.token_hex(16),
            TASKD_FAULT_INJECTION="on",
            TASKD_PORT=os.environ.get("TASKD_PORT") or str(_free_port()),
            TASKD_LOG_PATH=str(self.logs),
        )
        command = [
            *(
                start.command("taskd.cli", "run")
                if protected
                else start.command("torch.distributed.run")
            ),
            "--standalone",
            "--nproc_per_node",
            str(ranks),
            "--max-restarts",
            "1" if protected else "0",
        ]
        command += ["-m", "taskd.demo.train", "--out", str(directory), "--steps", str(steps)]
        self._readers = [records.Reader(directory, rank) for rank in range(ranks)]
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

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40.0)  # torchrun gives its ranks 30
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.returncode < 0:  # a launcher that was killed leaves its ranks behind
            self._end_orphans()

    def _end_orphans(self) -> None:
        mark = f"MINDX_TASK_ID={self.job}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # another user's, or it has just ended
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)

    def read(self) -> list[records.Record]:
        return [reader.poll() for reader in self._readers]

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
                    raise Broken(
                        f"it ended with exit code {code}"
                        if code > 0
                        else f"its launcher was ended by signal {-code}"
                    )
                return
            if time.monotonic() - heard > SILENCE:
                raise Broken(f"no rank has finished a step in the last {SILENCE:.0f} s")
            # the records are files, which ranks under plain torchrun write too: nothing announces
            # a new line
            time.sleep(LOOK)

    def kill(self, rank: int) -> records.Kill | None:
        """Send SIGKILL to the present process of `rank`; None if there is none, or it is not
        ours."""
        commits = self._readers[rank].poll().commits
        if not commits:
            return None
        pid = commits[-1].pid
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        try:
            # a pid read from a file is not proof: the process must belong to our job
            if f"MINDX_TASK_ID={self.job}".encode() not in Path(
                f"/proc/{pid}/environ"
            ).read_bytes().split(b"\0"):
                return None
            kill = records.Kill(rank, pid, time.monotonic_ns(), time.time())
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            return kill
        except (OSError, ProcessLookupError):
            return None
        finally:
            os.close(descriptor)

    def incidents(self) -> list[dict[str, Any]]:
        """The incidents of this run in the manager's journal."""
        try:
            lines = (self.logs / journal.INCIDENTS).read_text().splitlines()
        except FileNotFoundError:
            return []
        return [entry for entry in map(json.loads, lines) if entry["kind"] == "incident"]


def kill_points(kills: int, steps: int, dice: random.Random) -> list[int]:
    """After which step of all ranks each kill comes: at random within equal parts of the middle of
    the run."""
    first, last = 0.2 * steps, 0.8 * steps
    part = (last - first) / kills
    return [int(first + part * (k + dice.random())) for k in range(kills)]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
