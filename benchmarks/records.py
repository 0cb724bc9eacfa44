"""A job as its ranks' records (toy.Steps) and its manager's journal tell it, whoever started it."""

from __future__ import annotations

import os
import random
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import toy
from ports import free_port

from taskd import settings
from taskd.history.reading import repaired

HERE = Path(__file__).resolve().parent
# seconds without the expected progress; on a busy machine a start takes 10
PATIENCE = 120.0
# variables that jobs do not inherit from the benchmark's environment
FOREIGN = ("MASTER_", "MINDX_", "TASKD_", *settings.PARAMETERS)


class Failed(SystemExit):
    """A job did not do what a benchmark needs, which ends it; the text ends with the place of the
    job's output."""


def environment(log: Path, port: int = 0, **more: str) -> dict[str, str]:
    """The variables of a job, or of a manager alone, that logs to `log`."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    path = (more.pop("PYTHONPATH", ""), str(HERE.parent), os.environ.get("PYTHONPATH", ""))
    return inherited | {
        "OMP_NUM_THREADS": "1",
        "MINDX_TASK_ID": f"benchmark-{uuid.uuid4().hex[:12]}",
        "TASKD_SECRET": uuid.uuid4().hex,
        "TASKD_FAULT_INJECTION": "on",
        "TASKD_FAULT_REPORTS": "on",
        "TASKD_PORT": str(port or free_port()),
        "TASKD_LOG_PATH": str(log),
        "TASKD_DUMP_PATH": str(log / "dumps"),  # of a job that is stopped by SIGTERM
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        **more,
    }


class Training:
    """A job of `world` ranks that keep their records in `directory`."""

    pause = 0.005  # seconds between two looks at what is waited for

    def __init__(self, directory: Path, world: int) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.world, self.log = directory, world, directory / "log"
        self.steps = [toy.Steps(directory, r) for r in range(world)]

    def fail(self, what: str) -> Failed:
        return Failed(f"{what}; output and logs: {self.directory}")

    def check(self, what: str) -> None:
        """Raise Failed if `what` can no longer be waited for."""

    def wait(self, condition: Callable[[], Any], what: str) -> Any:
        end = time.monotonic() + PATIENCE
        while not (found := condition()):
            self.check(what)
            if time.monotonic() > end:
                raise self.fail(f"no {what} within {PATIENCE:.0f} s")
            time.sleep(self.pause)
        return found

    def committed(self) -> int:
        """The lowest of the ranks' last committed steps; -1 before all have one."""
        last = [s.last() for s in self.steps]
        return -1 if None in last else min(r[0] for r in last if r is not None)

    def highest(self) -> int:
        """The highest step that a rank has committed."""
        return max(r[0] for s in self.steps if (r := s.last()) is not None)

    def wait_for_steps(self, count: int) -> None:
        """Wait until all ranks have committed `count` more steps."""
        goal = self.committed() + count
        self.wait(lambda: self.committed() >= goal, f"step {goal} of all ranks")

    def pid(self, rank: int) -> int:
        """The process that wrote the rank's last record."""
        last = self.steps[rank].last()
        assert last is not None, f"rank {rank} has committed no step"
        return last[2]

    def usual(self, at: int) -> float:
        """The median step, in seconds, of the half second before `at`: shows how busy the machine
        was."""
        return self.median_step(at - 500_000_000, at)

    def median_step(self, since: int, until: int) -> float:
        taken = [t for own in self._taken(since, until) for t in own]
        return statistics.median(taken) if taken else 0.5

    def longest(self, since: int, until: int) -> float:
        """The longest time between two commits of a rank, in seconds."""
        return max(t for own in self._taken(since, until) for t in own)

    def _taken(self, since: int, until: int) -> list[list[float]]:
        times = [[r[1] for r in s.read(s.after(since)) if r[1] <= until] for s in self.steps]
        return [[(b - a) / 1e9 for a, b in zip(own, own[1:], strict=False)] for own in times]

    def incidents(self) -> list[dict[str, Any]]:
        """The closed incidents in the manager's journal."""
        return repaired(self.log)

    def incident(self, number: int) -> dict[str, Any]:
        """The job's `number`-th incident, once it is over."""
        self.wait(lambda: len(self.incidents()) >= number, f"end of incident {number}")
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


def monotonic(wall: float) -> int:
    """Convert a moment of the journal's clock to that of the ranks' records, time.monotonic_ns."""
    return time.monotonic_ns() - round((time.time() - wall) * 1e9)


def found(incident: Mapping[str, Any]) -> int:
    """The same of the moment when a fault was known; its incident began when the job came to a
    standstill."""
    return monotonic(incident["began"] + incident["phases"]["DETECT"])


def at_random(generator: random.Random, low: float = 0.1, high: float = 0.5) -> None:
    """Sleep for a random time, so that kills hit every part of a step."""
    time.sleep(generator.uniform(low, high))
