"""What is done to jobs of trainers while they train: memory and links are lost, they are paused,
stopped and resumed. Every number and file is that of the trainer alone."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import training
from plain_trainers import ACCELERATED, FIT, TRAIN, Compare, name

# where a rank waits: for a lost memory page, a link that is cut, a pause, a link that falls silent
HURT = {
    (FIT, "rich"): ("1:20:forward", "0:30:end", "1:45:forward", "0:60:begin"),
    (TRAIN, "evaluate"): ("1:0:substep_end", "0:1:substep_end", "1:3:evaluate", "0:5:substep_end"),
    (ACCELERATED, "calls"): ("1:1:backward", "0:3:backward", "1:8:backward", "0:10:backward"),
}
# where the job is stopped; where the next one is saved, and ends; what happens to the third
STOPS = {
    (FIT, "rich"): (
        *("1:40:forward", "0:50:forward", "1:68:end"),
        "1:19:validation:kill,0:72:end:kill,1:75:forward:kill",
    ),
    (TRAIN, "evaluate"): (
        *("1:1:substep_end", "0:3:substep_end", "1:5:substep_end"),
        "0:5:step_begin:kill,1:6:saving:kill",
    ),
    (ACCELERATED, "calls"): (
        *("1:2:backward", "0:7:backward", "1:12:backward"),
        "0:14:tail:kill,1:2:evaluate:kill",
    ),
}
LIGHTNING, TRANSFORMERS, ACCELERATE = HURT


@pytest.fixture(scope="session")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    return Compare(tmp_path_factory.getbasetemp())


class Steered:
    """A job of two ranks, which nap at some points."""

    def __init__(self, directory: Path, script: str, kind: str, faults: str, **env: str) -> None:
        self.directory = directory
        arguments = (directory, 2, script, str(directory), kind)
        self.job = training.begin(*arguments, faults=faults, **env)

    def naps(self, point: str) -> None:
        """Wait until a rank naps there."""
        rank, step, name = point.split(":")
        self.job.until(point, (self.directory / f"struck-{rank}-{step}-{name}-0").exists)

    def goes_on(self, point: str) -> None:
        (self.directory / f"enough-{point.split(':')[1]}").touch()

    def kill(self, rank: int) -> None:
        started = rf"rank {rank}: (?:its first process|replacement \d+) is pid (\d+)"
        found = re.findall(started, self.job.result().log("agent-0.log"))
        os.kill(int(found[-1]), signal.SIGKILL)

    def meanwhile(self, point: str, ask: Callable[[], str]) -> list[str]:
        """Ask for something that waits for the end of the step in which a rank naps there."""
        answers: list[str] = []
        known = self._pauses()
        asked = threading.Thread(target=lambda: answers.append(ask()))
        asked.start()
        self.job.until("ranks were to pause", lambda: self._pauses() > known)
        self.goes_on(point)
        asked.join()
        return answers

    def _pauses(self) -> int:
        return self.job.result().log("agent-0.log").count("pause before step")


@pytest.mark.parametrize("trainer", [ACCELERATE, *training.long(LIGHTNING, TRANSFORMERS)], ids=name)
def test_hurt_and_paused(tmp_path, compare, trainer):
    lost, cut, paused, silent = HURT[trainer]
    faults = ",".join(f"{point}:nap" for point in HURT[trainer])
    steered = Steered(tmp_path / "job", *trainer, faults)
    with steered.job as job:
        steered.naps(lost)
        job.poison(0, "parameter")
        steered.goes_on(lost)
        steered.naps(cut)
        job.break_link(0, 1, "cut")
        steered.goes_on(cut)
        steered.naps(paused)
        (answer,) = steered.meanwhile(paused, job.control.pause)
        assert answer.startswith("all ranks are paused before step")
        steered.kill(1)
        job.until("it was replaced", lambda: job.incidents()[-1]["ranks"] == [1])
        assert job.control.resume().startswith("the ranks continue with step")
        steered.naps(silent)
        job.break_link(0, 1, "drop")
        steered.goes_on(silent)
        result = job.end()
    compare(result, *trainer)
    found = [(incident["strategy"], incident["ranks"]) for incident in result.incidents]
    assert found == [("retry", []), ("retry", []), ("recover-in-place", [1]), ("retry", [])]


@pytest.mark.long
@pytest.mark.parametrize("trainer", [LIGHTNING, TRANSFORMERS, ACCELERATE], ids=name)
def test_stopped_and_resumed(tmp_path, compare, trainer):
    """By a signal, in the middle of an epoch, which a trainer may handle itself. What a job did
    after it was saved is done again."""
    stop, save, end, faults = STOPS[trainer]
    both = {"TASKD_DUMP_PATH": str(tmp_path / "dumps"), "TASKD_RESUME_PATH": "auto"}
    first = Steered(tmp_path / "job", *trainer, f"{stop}:nap", **both)
    with first.job as job:
        first.naps(stop)
        first.meanwhile(stop, lambda: str(job.signal(signal.SIGTERM)))
        assert job.ended().status == 75
    second = Steered(tmp_path / "job", *trainer, f"{save}:nap,{end}:nap", **both)
    with second.job as job:
        second.naps(save)
        second.meanwhile(save, job.control.dump)
        second.naps(end)
        job.signal(signal.SIGKILL)
        job.ended()
    with Steered(tmp_path / "job", *trainer, faults, **both).job as job:
        result = job.end()
    compare(result, *trainer)
    assert len(list(result.directory.glob("struck-*"))) == 3 + len(faults.split(","))
