"""A dump is written while the ranks train: what becomes of it and of them, whatever ends then."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import training

from taskd.records import dumps

SAVED, SCRIPT = 75, ("steered.py", "100")


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    """That of the jobs, under which their dumps are sealed."""
    monkeypatch.setenv("TASKD_SECRET", "tests")


class Asked(threading.Thread):
    """An operator who waits for the dump. Its writing begins, and goes on once it is let."""

    def __init__(self, job: training.Running) -> None:
        super().__init__(daemon=True)
        self.job, self.answer = job, ""
        self.start()
        job.until("the dump was being written", (job.directory / "writing").exists)

    def run(self) -> None:
        try:
            self.answer = self.job.control.dump()
        except Exception as error:
            self.answer = str(error)

    def written(self) -> Path:
        (self.job.directory / "hold").unlink()
        self.join(60)
        return Path(self.answer.removeprefix("the state is saved: "))


@pytest.fixture
def job(tmp_path) -> Iterator[training.Running]:
    (tmp_path / "hold").touch()
    with training.start(tmp_path, 2, *SCRIPT, TASKD_DUMP_PATH=str(tmp_path / "dumps")) as job:
        job.trains()
        yield job


def goes_on(job: training.Running, reference, path: Path) -> None:
    """The job and one that begins from its dump end like one that was never disturbed."""
    training.assert_equal(job.end(), reference(2, *SCRIPT), 2)
    again = training.taskd(job.directory / "again", 2, *SCRIPT, TASKD_RESUME_PATH=str(path))
    for rank in range(2):
        theirs = reference(2, *SCRIPT)
        assert min(again.steps(rank)) == dumps.read(path).step
        assert again.final(rank) == theirs.final(rank)


def test_ranks_train_meanwhile(job, reference):
    """Also through a repair: only the rank that writes is needed."""
    asked = Asked(job)
    before = max(job.committed())
    job.trains()
    job.kill(1)
    assert [incident["ranks"] for incident in job.repaired()] == [[1]]
    job.trains()
    assert not asked.answer and not list((job.directory / "dumps").glob("step-*"))
    path = asked.written()
    assert dumps.read(path).step <= before + 1
    goes_on(job, reference, path)


def test_the_rank_that_writes_is_killed(job, reference):
    asked = Asked(job)
    job.kill(0)
    asked.join(60)
    assert "rank 0, which was to write it, is gone" in asked.answer
    assert [incident["ranks"] for incident in job.repaired()] == [[0]]
    (job.directory / "writing").unlink()
    path = Asked(job).written()
    assert [found.name for found in (job.directory / "dumps").glob("step-*")] == [path.name]
    goes_on(job, reference, path)


def test_the_job_leaves_meanwhile(job, reference):
    """It saves its last step, and what was being written is no dump."""
    asked = Asked(job)
    first = max(job.committed())
    job.trains()
    job.signal(signal.SIGTERM)
    job.until("the last dump was begun", lambda: "strategy dump" in job.result().log("manager.log"))
    path = asked.written()
    result = job.ended()
    assert result.status == SAVED
    (found,) = (job.directory / "dumps").glob("step-*")
    assert path.name == found.name and dumps.read(found).step > first + 1
    again = training.taskd(job.directory / "again", 2, *SCRIPT, TASKD_RESUME_PATH=str(found))
    assert [again.final(r) for r in range(2)] == [reference(2, *SCRIPT).final(r) for r in range(2)]


def test_the_script_ends_meanwhile(job, reference):
    """Its process stays until the dump is written."""
    asked = Asked(job)
    (job.directory / "hurry").touch()
    job.until("the loop was over", lambda: min(job.committed()) == 99)
    path = asked.written()
    training.assert_equal(job.end(), reference(2, *SCRIPT), 2)
    (found,) = (job.directory / "dumps").glob("step-*")
    assert dumps.read(found).step < 99 and path.name in (found.name, "the job is over")
