"""Run a training script under a real launcher and compare what it wrote with an undisturbed run."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from taskd.control import Control
from taskd.cython_api import slot
from taskd.history.reading import repaired
from tests.lab import warm

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from ports import free_port
from results import Result

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"
BIN = Path(sys.executable).parent
# the program of warm.py's kinds of processes
FORKED = {"launcher": str(BIN / "taskd"), "ranks": str(HERE / "ranks.py")}
# the first torch that runs these on gloo: before, HSDP asks for an average, which gloo lacks, and
# pipelines hang or mix their messages up
SINCE = {"hsdp": (2, 8), **dict.fromkeys(("pp", "pp-interleaved", "cube"), (2, 10))}
LIMIT = 150.0  # seconds; a run takes 5-15, a hang must not eat the whole suite


def long(*values: object) -> list[object]:
    """Parameters with which a test is run by `make test-all` alone."""
    return [pytest.param(value, marks=pytest.mark.long) for value in values]


def paragraph(result: Result) -> str:
    """Why the job ended."""
    (line,) = [
        line for line in result.output.splitlines() if line.startswith("taskd: The job ends")
    ]
    return line


def environment(directory: Path, faults: str = "", **more: str | None) -> dict[str, str]:
    """`None`: a variable that is not set."""
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("TASKD_", "MINDX_", "POD_IP", "LD_PRELOAD"))
    }
    found = {
        **clean,
        "OMP_NUM_THREADS": "1",
        "TASKD_PORT": str(free_port()),
        "TASKD_SECRET": "tests",
        "TASKD_FAULT_INJECTION": "on",
        "TASKD_FAULT_REPORTS": "on",
        "TASKD_LOG_PATH": str(directory / "log"),
        "MINDX_TASK_ID": directory.name,
        "TEST_FAULTS": faults,
        "PYTHONWARNINGS": "ignore",
        **_rendezvous(),
        **more,
    }
    return {name: value for name, value in found.items() if value is not None}


def _rendezvous() -> dict[str, str]:
    """A port of its own for a job of one node, where torch takes 29500 unless told otherwise (2.7);
    later ones find a free one."""
    if _torchrun().get_default("master_port") is None:
        return {}
    return {"PET_MASTER_PORT": str(free_port())}


@cache
def _torchrun() -> argparse.ArgumentParser:
    from torch.distributed.run import get_args_parser

    return get_args_parser()


class Running:
    """A job in the background, to be steered while it trains. Leaving the `with` leaves no process
    behind."""

    def __init__(
        self,
        command: list[str],
        directory: Path,
        env: dict[str, str],
        world: int = 0,
        fork: str = "",
    ) -> None:
        """`fork`: what warm.py may fork instead of starting `command`, with its arguments."""
        self.directory, self.env, self._world = directory, env, world
        self._output = open(directory / "output", "w+")
        self._process: subprocess.Popen[bytes] | warm.Process
        if fork and warm.suits(env):
            arguments = command[command.index(FORKED[fork]) + 1 :]
            self._process = warm.popen(fork, arguments, env, directory, self._output.fileno())
        else:
            self._process = subprocess.Popen(
                command,
                env=env,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=directory,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if "control" in vars(self):
            self.control.close()
        if self._process.poll() is None:
            self._stop()
        self._output.close()

    @cached_property
    def control(self) -> Control:
        """Of the job as it runs: without a TASKD_SECRET its secret is there when it has started."""
        return Control(self.env)

    def _stop(self) -> None:
        os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(40)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def result(self) -> Result:
        """What there is so far."""
        return Result(
            self._process.poll(),
            (self.directory / "output").read_text(),
            self.directory,
            incidents(self.directory),
        )

    def end(self) -> Result:
        """Wait for the end; a run that hangs is stopped and has status -1 (and everything it
        printed)."""
        (self.directory / "hurry").touch()  # steered.py looks for it
        try:
            status = self._process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            self._stop()
            status = -1
        return Result(
            status,
            (self.directory / "output").read_text(),
            self.directory,
            incidents(self.directory),
        )

    # -- what it does ------------------------------------------------------------------------------

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait for something that will be seen from outside."""
        end = time.monotonic() + LIMIT
        while not condition():
            over = self._process.poll() is not None and not condition()
            if over or time.monotonic() > end:
                result = self.result()
                why = (
                    f"the job ended with status {result.status}"
                    if over
                    else f"{LIMIT:g} s have passed"
                )
                raise AssertionError(
                    f"{why} before {what}\n{result.output[-3000:]}\n{result.log('*.log')[-6000:]}"
                )
            time.sleep(0.02)

    def committed(self) -> list[int]:
        """The last step that each rank has written down, -1 for none."""
        return [max(self.result().steps(r), default=-1) for r in range(self._world)]

    def trains(self) -> None:
        """Wait until every rank has committed a few steps more."""
        wanted = min(self.committed()) + 4
        self.until(
            f"all ranks had committed step {wanted}", lambda: min(self.committed()) >= wanted
        )

    def incidents(self) -> list[dict]:
        """Those that are closed."""
        return incidents(self.directory)

    def repaired(self) -> list[dict]:
        """Wait until one incident more is closed than when this was called last; the new ones."""
        known = self._known
        self.until(f"incident {known + 1} was closed", lambda: len(self.incidents()) > known)
        new = self.incidents()[known:]
        self._known += len(new)
        return new

    _known = 0

    def pid(self, rank: int) -> int:
        """Of the rank's present process, once it has written down a step: a repair is over before
        that."""
        self.until(f"rank {rank} went on", lambda: bool(self._alive(rank)))
        return self._alive(rank)[-1]

    def _alive(self, rank: int) -> list[int]:
        return [pid for pid in self.result().pids(rank)[-1:] if psutil.pid_exists(pid)]

    def manager(self) -> int:
        """The manager's process."""
        (found,) = [
            p.pid
            for p in psutil.process_iter(["cmdline", "environ"])
            if "taskd.manager" in (p.info["cmdline"] or [])
            and (p.info["environ"] or {}).get("TASKD_LOG_PATH") == self.env["TASKD_LOG_PATH"]
        ]
        return found

    def zygote(self) -> int:
        """The process that forks the launcher's ranks."""
        (found,) = [
            p.pid
            for p in psutil.Process(self._process.pid).children()
            if "taskd.agent.ranks.zygote" in p.cmdline()
        ]
        return found

    def phases(self) -> list[str]:
        """Of all ranks, from the agent's state page (its layout: csrc/libtaskd.h)."""
        (path,) = Path("/dev/shm").glob(f"taskd-*-{self._process.pid}-*/page")
        page = path.read_bytes()
        _, _, slots, size = struct.unpack_from("4I", page)
        return [
            slot.PHASES[struct.unpack_from("I", page, 4 * 64 + number * size + 64 + 4)[0]]
            for number in range(slots)
        ]

    # -- what is done to it ------------------------------------------------------------------------

    def poison(self, rank: int, where: str, page: int | None = None) -> str:
        return self.control.inject(
            rank,
            "memory",
            {"where": where} if page is None else {"where": where, "page": str(page)},
        )

    def break_link(self, one: int, other: int, how: str) -> None:
        """As `taskd inject link` does."""
        for here, there in ((one, other), (other, one))[: 2 if how == "drop" else 1]:
            self.control.inject(
                here, "link", {"how": how, "ends": self.control.inject(there, "endpoints", {})}
            )

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        os.kill(self.pid(rank), number)

    def signal(self, number: int) -> None:
        """To the launcher."""
        self._process.send_signal(number)

    def ended(self) -> Result:
        """Wait for an end that is not the loop's."""
        self._process.wait(LIMIT)
        return self.result()

    def ask(self, rank: int, point: str, kind: str) -> None:
        """Of steered.py: do that to yourself when you come to that point next; see
        scripts/faults.py."""
        order = self.directory / f"asked-{rank}-{point}"
        order.with_suffix(".new").write_text(kind)
        order.with_suffix(".new").rename(order)

    def taskd(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command as an operator would give it."""
        return subprocess.run(
            [str(BIN / "taskd"), *arguments],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )


def run(command: list[str], directory: Path, env: dict[str, str], fork: str = "") -> Result:
    with Running(command, directory, env, fork=fork) as job:
        return job.end()


def incidents(directory: Path) -> list[dict]:
    return repaired(directory / "log")


def begin(
    directory: Path,
    world: int,
    *program: str,
    faults: str = "",
    options: tuple[str, ...] = (),
    fork: str = "launcher",
    **env: str | None,
) -> Running:
    """`taskd run` of the program, with its arguments, in that directory."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(BIN / "taskd"), "run", *options, "--nproc_per_node", str(world), *program]
    return Running(command, directory, environment(directory, faults, **env), world, fork)


def launch(directory: Path, world: int, *program: str, **more: Any) -> Result:
    with begin(directory, world, *program, **more) as job:
        return job.end()


def start(directory: Path, world: int, script: str, *arguments: str, **more: Any) -> Running:
    """One of the scripts here."""
    return begin(directory, world, str(SCRIPTS / script), str(directory), *arguments, **more)


def taskd(directory: Path, world: int, script: str, *arguments: str, **more: Any) -> Result:
    with start(directory, world, script, *arguments, **more) as job:
        return job.end()


def undisturbed(directory: Path, world: int, script: str, *arguments: str) -> Result:
    """The same script without a launcher: nothing of taskd at work, and nothing fails."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        str(HERE / "ranks.py"),
        str(world),
        str(SCRIPTS / script),
        str(directory),
        *arguments,
    ]
    result = run(command, directory, environment(directory), "ranks")
    assert result.status == 0, result.output[-3000:]
    return result


class References:
    """Undisturbed runs, each made once for all of pytest's workers, and kept."""

    def __init__(self, base: Path) -> None:
        """`base`: what pytest gives to this process."""
        self._shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def __call__(self, world: int, script: str, *arguments: str) -> Result:
        directory = self._shared / "-".join(
            ("undisturbed", str(world), Path(script).name, *arguments)
        )
        complete = directory / "complete"
        with open(self._shared / f"{directory.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not complete.exists():
                shutil.rmtree(directory, ignore_errors=True)  # of a test that was ended in it
                undisturbed(directory, world, script, *arguments)
                complete.touch()
        return Result(0, "", directory)


def of_this_torch(kind: str) -> None:
    """Skip the test where this torch cannot train that way on the CPU, with or without taskd."""
    there = tuple(map(int, torch.__version__.split(".")[:2]))
    if SINCE.get(kind, there) > there:
        pytest.skip(f"torch {torch.__version__} cannot train {kind} on gloo, also without taskd")


def assert_equal(result: Result, reference: Result, world: int) -> None:
    """Every step's values and the final state of every rank equal the reference's, bit for bit."""
    assert result.status == 0, f"{result.output[-3000:]}\n{result.log('*.log')[-6000:]}"
    for rank in range(world):
        mine, theirs = result.steps(rank), reference.steps(rank)
        missing = set(theirs) - set(mine)
        # a process that is struck between its commit and the line that it would have written next
        # leaves no line, at most one a strike
        strikes = max(
            len(list(result.directory.glob(f"struck-{rank}-*"))), len(result.pids(rank)) - 1
        )
        assert len(missing) <= strikes and not set(mine) - set(theirs), (
            f"rank {rank}: steps {sorted(set(mine) ^ set(theirs))} are in one run only"
        )
        for step in sorted(mine):
            assert mine[step] == theirs[step], (
                f"rank {rank} differs first at step {step}: {mine[step]} and {theirs[step]}"
            )
        assert result.final(rank) == reference.final(rank), f"rank {rank}: final state differs"
