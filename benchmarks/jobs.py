"""Starts and kills the benchmarks' jobs on one host; `Run` is one job of benchmarks/toy.py or
another script."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import toy
from figures import Figures, ms, spread, summary
from launchers import TASKD
from records import HERE, PATIENCE, Failed, Training, at_random, environment
from state_page import StatePage

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
PHASES = ("DETECT", "INTERRUPT", "REPLACE", "REBUILD", "RESTORE", "RESUME")


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


class Run(Training):
    """One job, under taskd run if `taskd`, else under plain torchrun. A context manager that ends
    with `stop`."""

    def __init__(
        self,
        directory: Path,
        world: int,
        taskd: bool,
        script: str | Path = "toy.py",
        arguments: Sequence[str] = (),
        options: Sequence[str] = (),
        out: bool = True,
        port: int = 0,
        **more: str,
    ) -> None:
        """`options`: the launcher's; `more`: environment variables. The script is told `directory`
        as `--out`, but for those of others."""
        super().__init__(directory, world)
        self.taskd, self.output = taskd, directory / "output"
        self.environment = environment(self.log, port, **more)
        launcher, shape = TORCHRUN, ["--standalone", "--nproc_per_node", str(world), *options]
        if taskd:
            launcher = [*TASKD, "run"]
        else:
            # torch 2.13 keeps one store for all restarts, with the dead ranks' addresses in it: no
            # restart would succeed
            self.environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            shape += ["--monitor-interval", "0.1", "--max-restarts", "100"]
        told = ["--out", str(directory)] if out else []
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [*launcher, *shape, str(HERE / script), *told, *arguments],
                env=self.environment,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._page: StatePage | None = None

    @property
    def page(self) -> StatePage:
        """The state page, once the ranks train."""
        if self._page is None:
            self._page = StatePage.of(self.pid(0))
        return self._page

    def __enter__(self) -> Any:
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

    def check(self, what: str) -> None:
        if self.process.poll() is not None:
            raise self.fail(f"waited for {what}")

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

    def kill(self, rank: int) -> Kill:
        """Send SIGKILL to the process that wrote the last record of `rank`."""
        return self.kill_pid(rank, self.pid(rank))

    def kill_pid(self, rank: int, pid: int, number: int = signal.SIGKILL) -> Kill:
        """Send a signal to a process of the job. Raises ProcessLookupError if it is gone."""
        fd = os.pidfd_open(pid)
        try:
            # a pid from a file is not proof: the process must belong to this job
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            if f"MINDX_TASK_ID={self.environment['MINDX_TASK_ID']}".encode() not in variables:
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

    def kills(self, count: int, dice: random.Random, ballast: int = 0) -> list[Recovery]:
        """Kill random ranks at random moments, one after the other; with `ballast`, ranks that have
        so many GiB."""
        found = []
        for _ in range(count):
            rank, known = dice.randrange(self.world), len(self.incidents())
            if ballast:
                self.ballast(rank, ballast)
            at_random(dice)
            recovery = self.recover(self.kill(rank))
            if self.taskd:
                recovery.phases.update(self.phases(recovery.kill, known + 1))
            found.append(recovery)
            self.wait_for_steps(10)
        return found


def wait_for_quiet(patience: float, others: float = 20.0) -> float:
    """Wait, at most `patience` seconds, until the cores are less than `others` percent busy; return
    how busy they are."""
    end = time.monotonic() + patience
    while True:
        busy: float = psutil.cpu_percent(1.0)
        if busy < others or time.monotonic() > end:
            return busy


def recoveries(series: Mapping[str, Sequence[Recovery]]) -> Figures:
    """`ratio`: of the medians, to the first of `series`."""
    heads = ("kills", "median", "least", "90 %", "worst", "ratio", "usual step", "lost", "kept")
    title = "kill -9 to the next step of all ranks, ms (lost: steps; kept: survivors)"
    table, medians = Figures(title, "", *heads), []
    for name, found in series.items():
        if found:
            seconds, lost = [r.seconds for r in found], [r.lost for r in found]
            medians.append(summary(seconds)["median"])
            table.add_row(
                name,
                str(len(found)),
                *spread(seconds),
                f"{medians[-1] / medians[0]:.2f}",
                ms(summary([r.step for r in found])["median"]),
                f"{min(lost)}-{max(lost)}" if max(lost) else "0",
                "yes" if all(r.kept for r in found) else "no",
            )
    return table


def breakdown(series: Mapping[str, Sequence[Recovery]]) -> Figures:
    table = Figures("where the time goes: median (worst) of each phase, ms", "", *PHASES)
    for name, found in series.items():
        if found:
            cells = [summary([r.phases.get(phase, 0.0) for r in found]) for phase in PHASES]
            table.add_row(name, *(f"{ms(c['median'])} ({ms(c['worst'])})" for c in cells))
    return table
