"""`taskd pause` and `taskd continue`: all ranks stand before the same step, also through faults,
and the numbers stay the same."""

from __future__ import annotations

import time

import pytest
import training

from taskd.control import ControlError

STEPS = "100"
SECOND = 1.0  # of standing still: six steps of this job
WORLD = 4


def test_hold(tmp_path, reference):
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / "wait").touch()
    with training.start(directory, WORLD, "steered.py", STEPS) as job:
        with pytest.raises(ControlError, match="not every rank has begun its protected loop"):
            job.control.pause()
        (directory / "wait").unlink()
        job.trains()

        done = job.taskd("pause")
        assert done.returncode == 0, done.stderr
        step = int(done.stdout.rpartition(" ")[2])
        assert done.stdout == f"all ranks are paused before step {step}\n"
        stands_before(job, step)
        # once more, which is harmless
        assert job.control.pause() == f"all ranks are paused before step {step}"
        for arguments, words in (
            (("memory", "--rank", "9"), "rank 9 is on no node that has joined"),
            (("link", "--ranks", "1,9"), "rank 9 is on no node that has joined"),
        ):
            refused = job.taskd("inject", *arguments)
            assert refused.returncode == 1 and words in refused.stderr, refused.stderr
        done = job.taskd("continue")
        assert (done.returncode, done.stdout) == (0, f"the ranks continue with step {step}\n"), (
            done.stderr
        )
        job.trains()
        assert job.control.resume() == "the ranks continue"  # nobody is paused
        assert job.incidents() == []

        step = int(job.control.pause().rpartition(" ")[2])
        job.kill(2)
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("recover-in-place", [2]), incident
        stands_before(job, step)
        job.control.resume()
        job.trains()

        job.control.pause()
        job.poison(1, "parameter")
        job.control.resume()
        (incident,) = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("retry", []), incident

        job.ask(3, "tail", "nap1.2")
        job.until("rank 3 took its nap", lambda: any(directory.glob("struck-3-tail-asked-*")))
        with pytest.raises(
            ControlError, match=r"not every rank had stopped within 0.3 s; the ranks continue"
        ):
            job.control.pause(0.3)
        job.trains()
        result = job.end()
    training.assert_equal(result, reference(WORLD, "steered.py", STEPS), WORLD)
    assert [len(result.pids(rank)) for rank in range(WORLD)] == [1, 1, 2, 1]


def stands_before(job: training.Running, step: int) -> None:
    job.until("all ranks were paused", lambda: job.phases() == ["paused"] * WORLD)
    assert job.committed() == [step - 1] * WORLD
    time.sleep(SECOND)
    assert job.committed() == [step - 1] * WORLD and job.phases() == ["paused"] * WORLD
