"""One node, whose ranks leave: what is saved of such a job, and jobs that cannot do without a
rank."""

from __future__ import annotations

import by_hand
import pytest
import training

STEPS = "96"
ONLY = {"TASKD_RECOVER_STRATEGY": "elastic-training,dump"}


def elastic(directory, kind, **env):
    return training.start(directory, 4, "elastic.py", kind, STEPS, **ONLY, **env)


@pytest.mark.long
def test_a_shrunk_job_is_saved_and_goes_on_with_all_ranks(tmp_path):
    dumps = {"TASKD_DUMP_PATH": str(tmp_path / "dumps")}
    with elastic(tmp_path / "a", "shares", **dumps) as job:
        job.trains()
        job.kill(2)
        (closed,) = job.repaired()
        assert closed["strategy"] == "elastic-training", closed
        job.until("it went on", lambda: max(job.result().steps(0)) > closed["step"] + 4)
        done = job.taskd("stop")
        assert done.returncode == 0, done.stderr
        saved = job.ended()
    assert saved.status == 75, saved.output[-3000:]
    step = max(saved.steps(0)) + 1
    plan = by_hand.plan(tmp_path / "a")
    again = training.taskd(
        tmp_path / "b", 4, "elastic.py", "shares", STEPS, TASKD_RESUME_PATH=str(tmp_path / "dumps")
    )
    assert again.status == 0, again.output[-3000:]
    before = {line for line in by_hand.computed(tmp_path / "a") if int(line.split()[0]) < step}
    replay = ("shares", STEPS, f"{plan};{step}:")
    reference = by_hand.alone(tmp_path / "hand", 4, "elastic.py", *replay)
    assert before | by_hand.computed(tmp_path / "b") == by_hand.computed(reference.directory)
    for rank in range(4):
        assert again.final(rank) == reference.final(rank), rank


@pytest.mark.parametrize(
    ("script", "arguments", "why"),
    [
        ("mlp.py", ("40",), "job.shares"),
        ("loader.py", ("distributed", "3"), "job.batches hands out"),
        ("parallel.py", ("20", "fsdp"), "exist"),
    ],
)
def test_jobs_that_cannot_do_without_a_rank_say_why(tmp_path, script, arguments, why):
    result = training.taskd(
        tmp_path / "a", 4, script, *arguments, faults="2:6:tail:kill", **ONLY,
        TASKD_DUMP_PATH=str(tmp_path / "dumps"),
    )  # fmt: skip
    assert result.status == 75, result.output[-3000:]
    reason = training.paragraph(result)
    assert "elastic-training" in reason and why in reason, reason
    assert "elastic-training: not possible" in result.log("worker-*.log")
