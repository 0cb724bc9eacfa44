"""Run a training script under a real launcher and compare what it wrote with an undisturbed run."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"
BIN = Path(sys.executable).parent
LIMIT = 150.0  # seconds; a run takes 5-15, a hang must not eat the whole suite


@dataclass
class Result:
    status: int
    output: str
    directory: Path
    incidents: list[dict] = field(default_factory=list)

    def steps(self, rank: int) -> dict[int, set[str]]:
        """step -> the different values recorded for it; a step that was handed out again has one set of values if exact."""
        out: dict[int, set[str]] = {}
        for kind, number, _, values in self._lines(rank):
            if kind == "step":
                out.setdefault(int(number), set()).add(values)
        return out

    def final(self, rank: int) -> list[str]:
        return [f"{number} {values}" for kind, number, _, values in self._lines(rank) if kind == "final"]

    def pids(self, rank: int) -> list[int]:
        """Processes that held the rank, in order."""
        pids = [int(pid) for kind, _, pid, _ in self._lines(rank) if kind == "step"]
        return list(dict.fromkeys(pids))

    def _lines(self, rank: int):
        for line in (self.directory / f"rank-{rank}").read_text().splitlines():
            kind, *rest = line.split()
            if kind == "step":
                yield kind, rest[0], rest[1], " ".join(rest[2:])
            else:
                yield kind, rest[1], rest[0], rest[2]

    def log(self, name: str) -> str:
        return "".join(p.read_text() for p in sorted((self.directory / "log").glob(name)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def environment(directory: Path, faults: str = "", **more: str) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TASKD_", "MINDX_", "POD_IP", "LD_PRELOAD"))}
    return {
        **clean,
        "OMP_NUM_THREADS": "1",
        "TASKD_PORT": str(free_port()),
        "TASKD_SECRET": "tests",
        "TASKD_LOG_PATH": str(directory / "log"),
        "MINDX_TASK_ID": directory.name,
        "TASKD_TEST_FAULTS": faults,
        "PYTHONWARNINGS": "ignore",
        **more,
    }


def run(command: list[str], directory: Path, env: dict[str, str]) -> Result:
    """Run to the end; a run that hangs is stopped and has status -1 (and everything it printed)."""
    with open(directory / "output", "w+") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=directory)
        try:
            status = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(40)
            status = -1
        output.seek(0)
        return Result(status, output.read(), directory, incidents(directory))


def incidents(directory: Path) -> list[dict]:
    journal = directory / "log" / "incidents.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()] if journal.exists() else []
    return [line for line in lines if "strategy" in line]


def taskd(directory: Path, world: int, script: str, *arguments: str, faults: str = "", options: tuple[str, ...] = (), **env: str) -> Result:
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(BIN / "taskd"), "run", *options, "--nproc_per_node", str(world), str(SCRIPTS / script), str(directory), *arguments]
    return run(command, directory, environment(directory, faults, **env))


def undisturbed(directory: Path, world: int, script: str, *arguments: str) -> Result:
    """The same script under plain torchrun: nothing of taskd at work, and nothing fails."""
    directory.mkdir(parents=True, exist_ok=True)
    command = [str(BIN / "torchrun"), "--nproc_per_node", str(world), str(SCRIPTS / script), str(directory), *arguments]
    result = run(command, directory, environment(directory))
    assert result.status == 0, result.output[-3000:]
    return result


def assert_equal(result: Result, reference: Result, world: int) -> None:
    """Every step's values and the final state of every rank equal the reference's, bit for bit."""
    assert result.status == 0, f"{result.output[-3000:]}\n{result.log('*.log')[-6000:]}"
    for rank in range(world):
        mine, theirs = result.steps(rank), reference.steps(rank)
        missing = set(theirs) - set(mine)
        # a process that is struck between its commit and the line that it would have written next leaves no line, at most one a strike
        strikes = len(list(result.directory.glob(f"struck-{rank}-*")))
        assert len(missing) <= strikes and not set(mine) - set(theirs), (
            f"rank {rank}: steps {sorted(set(mine) ^ set(theirs))} are in one run only"
        )
        for step in sorted(mine):
            assert mine[step] == theirs[step], f"rank {rank} differs first at step {step}: {mine[step]} and {theirs[step]}"
        assert result.final(rank) == reference.final(rank), f"rank {rank}: final state differs"
