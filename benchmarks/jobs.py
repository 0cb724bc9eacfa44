"""Starts, kills and reads the benchmarks' jobs; `Run` is one job of benchmarks/toy.py or another
script."""

from __future__ import annotations

import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import toy
from ports import free_port
from state_page import StatePage

from taskd import settings
from taskd.history.reading import repaired

HERE = Path(__file__).resolve().parent
# seconds without the expected progress; on a busy machine a start takes 10
PATIENCE = 120.0
# variables that jobs do not inherit from the benchmark's environment
FOREIGN = ("MASTER_", "MINDX_", "TASKD_", *settings.PARAMETERS)


class Failed(RuntimeError):
    """A job did not do what a benchmark needs; the text ends with the place of its output."""


@dataclass(frozen=True)
class Kill:
    """A signal that was sent. `at` is time.monotonic_ns; `wall` time.time at the same moment, the
    journal's clock."""

    rank: int
    pid: int
    at: int
    wall: float


@dataclass(frozen=True)
class Recovery:
    """The recovery from a kill, by the ranks' own records."""

    kill: Kill
    seconds: float  # until every rank has committed the first step that the killed process did not
    # seconds; the median step of the half second before, which tells how busy the machine was
    step: float
    lost: int  # steps that all ranks had committed and that were repeated
    kept: bool  # every survivor is the same process
    phases: dict[str, float] = field(default_factory=dict)  # seconds; from the journal


class Run:
    """One job, under taskd run if `taskd`, else under plain torchrun. A context manager that ends
    with `stop`."""

    def __init__(
        self,
        directory: Path,
        world: int,
        taskd: bool,
        script: str = "toy.py",
        arguments: Sequence[str] = (),
        port: int = 0,
        **more: str,
    ) -> None:
        """`more`: environment variables."""
        self.directory, self.world, self.taskd = directory, world, taskd
        directory.mkdir(parents=True)
        self.job = f"benchmark-{uuid.uuid4().hex[:12]}"
        self.output = directory / "output"
        self.log = directory / "log"
        self.environment = environment = {
            k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)
        }
        environment.update(
            OMP_NUM_THREADS="1",
            MINDX_TASK_ID=self.job,
            TASKD_SECRET=uuid.uuid4().hex,
            TASKD_FAULT_INJECTION="on",
            TASKD_FAULT_REPORTS="on",
            TASKD_PORT=str(port or free_port()),
            TASKD_LOG_PATH=str(self.log),
            PYTHONPATH=os.pathsep.join(
                p for p in (str(HERE.parent), os.environ.get("PYTHONPATH", "")) if p
            ),
            **more,
        )
        shape = ["--standalone", "--nproc_per_node", str(world)]
        launcher = (
            ["-c", "from taskd.cli import main; main()", "run", *shape]
            if taskd
            else ["-m", "torch.distributed.run", *shape]
        )
        if not taskd:
            # torch 2.13 keeps one store for all restarts, with the dead ranks' addresses in it: no
            # restart would succeed
            environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            launcher += ["--monitor-interval", "0.1", "--max-restarts", "100"]
        command = [
            sys.executable,
            *launcher,
            str(HERE / script),
            "--out",
            str(directory),
            *arguments,
        ]
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.steps = [toy.Steps(directory, r) for r in range(world)]
        self._page: StatePage | None = None

    @property
    def page(self) -> StatePage:
        """The state page, once the ranks train."""
        if self._page is None:
            last = self.steps[0].last()
            assert last is not None, "no rank has committed a step"
            self._page = StatePage.of(last[2])
        return self._page

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(40.0)  # torchrun gives its ranks 30 s
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def fail(self, what: str) -> Failed:
        lines = [
            line
            for line in self.output.read_text(errors="replace").splitlines()
            if line.startswith("taskd: ")
        ]
        reason = lines[-1] if lines else self.output.read_text(errors="replace")[-2000:]
        code = self.process.poll()
        ended = "" if code is None else f" (the job has ended with {code})"
        return Failed(f"{what}{ended}; output: {self.output}\n{reason}")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            if self.process.poll() is not None:
                raise self.fail(
                    f"the job ended with {self.process.returncode} while waiting for {what}"
                )
            if time.monotonic() > end:
                raise self.fail(f"no {what} within {PATIENCE:.0f} s")
            time.sleep(0.005)

    def finish(self) -> None:
        """Wait for the job to end, as long as it makes progress."""
        known, end = -1, 0.0
        while self.process.poll() is None:
            if (count := sum(map(len, self.steps))) != known:
                known, end = count, time.monotonic() + PATIENCE
            if time.monotonic() > end:
                raise self.fail(f"the job has made no progress for {PATIENCE:.0f} s")
            time.sleep(0.05)
        if self.process.returncode:
            raise self.fail(f"the job ended with {self.process.returncode}")

    def committed(self) -> int:
        """The lowest of the ranks' last committed steps; -1 before all have one."""
        last = [s.last() for s in self.steps]
        return -1 if None in last else min(r[0] for r in last if r is not None)

    def wait_for_steps(self, count: int) -> None:
        """Wait until all ranks have committed `count` more steps."""
        goal = self.committed() + count
        self.wait(lambda: self.committed() >= goal, f"step {goal} of all ranks")

    def kill(self, rank: int) -> Kill:
        """Send SIGKILL to the process that wrote the last record of `rank`."""
        record = self.steps[rank].last()
        assert record is not None
        return self.kill_pid(rank, record[2])

    def kill_pid(self, rank: int, pid: int, number: int = signal.SIGKILL) -> Kill:
        """Send a signal to a process of the job. Raises ProcessLookupError if it is gone."""
        fd = os.pidfd_open(pid)
        try:
            # a pid from a file is not proof: the process must belong to this job
            if f"MINDX_TASK_ID={self.job}".encode() not in Path(
                f"/proc/{pid}/environ"
            ).read_bytes().split(b"\0"):
                raise self.fail(f"process {pid} does not belong to this job")
            kill = Kill(rank, pid, time.monotonic_ns(), time.time())
            signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)
        return kill

    def ballast(self, rank: int, size: int) -> None:
        """Let `rank` allocate and touch `size` GiB of memory, and train on."""
        orders = toy.Orders(self.directory)
        orders.put(rank, size)
        self.wait(lambda: orders.get(rank) == 0, f"{size} GiB in rank {rank}")
        self.wait_for_steps(10)

    def recover(self, kill: Kill) -> Recovery:
        """Wait until the job trains on after `kill`, and return the recovery."""
        before = [[r for r in s.read() if r[1] <= kill.at] for s in self.steps]
        missed = (
            max((r[0] for r in self.steps[kill.rank].read() if r[2] == kill.pid), default=-1) + 1
        )
        counts = [len(b) for b in before]

        def trains_on() -> bool:
            after = [s.read(n) for s, n in zip(self.steps, counts, strict=True)]
            newcomer = [r for r in after[kill.rank] if r[2] != kill.pid and r[0] >= missed]
            return bool(newcomer) and all(any(r[0] >= newcomer[0][0] + 3 for r in a) for a in after)

        self.wait(trains_on, f"step {missed} after the kill of rank {kill.rank}")
        after = [s.read(n) for s, n in zip(self.steps, counts, strict=True)]
        # the replacement may begin one step later if the others had finished the missed one
        first = next(r[0] for r in after[kill.rank] if r[2] != kill.pid and r[0] >= missed)
        done = max(
            max((r[1] for r in [*b, *a] if r[0] == first), default=0)
            for b, a in zip(before, after, strict=True)
        )
        common = min(b[-1][0] for b in before)
        again = {r[0] for a in after for r in a if r[0] <= common}
        kept = all(
            b[-1][2] == a[-1][2]
            for r, (b, a) in enumerate(zip(before, after, strict=True))
            if r != kill.rank
        )
        return Recovery(kill, (done - kill.at) / 1e9, self.usual(kill.at), len(again), kept)

    def usual(self, at: int) -> float:
        """The median step, in seconds, of the half second before `at`: shows how busy the machine
        was."""
        times = [
            [r[1] for r in s.read(s.after(at - 500_000_000)) if r[1] <= at] for s in self.steps
        ]
        taken = [(b - a) / 1e9 for own in times for a, b in zip(own, own[1:], strict=False)]
        return statistics.median(taken) if taken else 0.5

    def incidents(self) -> list[dict[str, Any]]:
        """The closed incidents in the manager's journal."""
        return repaired(self.log)

    def incident(self, number: int) -> dict[str, Any]:
        """The job's `number`-th incident, once it is over."""
        self.wait(lambda: len(self.incidents()) >= number, f"the end of incident {number}")
        return self.incidents()[number - 1]

    def all_committed(self, step: int, since: int) -> int:
        """When every rank had committed `step` after `since`, for the last time, by
        time.monotonic_ns. For a rank killed before it recorded that, its next step counts."""

        def moments() -> list[int]:
            after = [s.read(s.after(since)) for s in self.steps]
            return [
                max(
                    (r[1] for r in records if r[0] == step),
                    default=min((r[1] for r in records if r[0] > step), default=0),
                )
                for records in after
            ]

        self.wait(lambda: 0 not in moments(), f"step {step} of all ranks")
        return max(moments())

    def phases(self, kill: Kill, count: int) -> dict[str, float]:
        """The phases of the `count`-th incident, which `kill` caused; DETECT begins at the kill."""
        incident = self.incident(count)
        if kill.rank not in incident["ranks"]:
            raise self.fail(
                f"incident {count} is about ranks {incident['ranks']}, rank {kill.rank} was killed"
            )
        phases: dict[str, float] = dict(incident["phases"])
        phases["DETECT"] += incident["began"] - kill.wall
        return phases


def monotonic(wall: float) -> int:
    """Convert a moment of the journal's clock to that of the ranks' records, time.monotonic_ns."""
    return time.monotonic_ns() - round((time.time() - wall) * 1e9)


def at_random(generator: random.Random, low: float = 0.1, high: float = 0.5) -> None:
    """Sleep for a random time, so that kills hit every part of a step."""
    time.sleep(generator.uniform(low, high))


def end_cleanly() -> None:
    """Let SIGTERM end the benchmark as an exception does, so that its jobs are stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_for_quiet(patience: float, others: float = 20.0) -> float:
    """Wait, at most `patience` seconds, until the cores are less than `others` percent busy; return
    how busy they are."""
    end = time.monotonic() + patience
    while True:
        busy: float = psutil.cpu_percent(1.0)
        if busy < others or time.monotonic() > end:
            return busy


def summary(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "count": len(ordered),
        "median": statistics.median(ordered),
        "least": ordered[0],
        "p90": ordered[min(len(ordered) - 1, int(0.9 * len(ordered)))],
        "worst": ordered[-1],
    }


def ms(value: float) -> str:
    return f"{value * 1e3:.1f}" if abs(value) < 1 else f"{value * 1e3:,.0f}"


def machine() -> dict[str, Any]:
    import torch

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load": os.getloadavg(),
    }
