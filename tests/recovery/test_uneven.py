"""Ranks that do not begin the same collectives: found before the next update, or let alone where
ranks may differ."""

from __future__ import annotations

import re

import pytest
import training

from tests.lab.troubleshooting import told

STEPS = "24"
PASSES = "the ranks begin step N in different passes of the loop"
LEFT = "wait in step N for ranks [N], whose script has left the loop"
UNEVEN = "ranks began different numbers of collectives in step N"


@pytest.mark.parametrize("kind", ["skips", "accumulates", "branches"])
def test_a_rank_that_begins_others_ends_the_job_before_the_next_update(tmp_path, kind):
    result = training.taskd(tmp_path / "job", 3, "uneven.py", STEPS, kind)
    assert result.status == 1, result.output[-3000:]
    assert "taskd: The job ends: rank" in result.output
    assert told(result.output, UNEVEN) and "the default group of ranks 0, 1, 2" in result.output
    assert f"rank 1 began {'2' if kind == 'branches' else 'none'}" in result.output
    printed = [int(step) for step in re.findall(r"rank \d step (\d+) loss", result.output)]
    assert max(printed) == 9, "a loss of a later step"
    assert "replaced in" not in result.output


def test_a_rank_that_breaks_off_alone_ends_the_job_before_the_next_update(tmp_path):
    result = training.taskd(tmp_path / "job", 3, "uneven.py", STEPS, "breaks")
    assert result.status == 1, result.output[-3000:]
    assert told(result.output, PASSES)
    assert re.search(r"ranks 0, 2 in pass 1|rank [02] in pass 1", training.paragraph(result))
    printed = [int(step) for step in re.findall(r"rank \d step (\d+) loss", result.output)]
    assert max(printed) == 9 and "replaced in" not in result.output


def test_a_rank_whose_script_ends_alone_ends_the_job(tmp_path):
    """Others wait for it in vain: it is not replaced, since that would train past its own end."""
    result = training.taskd(tmp_path / "job", 3, "uneven.py", STEPS, "ends")
    assert result.status == 1, result.output[-3000:]
    assert told(result.output, LEFT) and "for ranks [1]" in training.paragraph(result)
    printed = [int(step) for step in re.findall(r"rank \d step (\d+) loss", result.output)]
    assert max(printed) == 9 and "replaced in" not in result.output


@pytest.mark.parametrize("kind", ["threads", "sends", "monitors"])
def test_ranks_that_may_differ_train_on(tmp_path, kind):
    result = training.taskd(tmp_path / "job", 3, "uneven.py", STEPS, kind)
    assert result.status == 0, result.output[-3000:]
    assert not told(result.output, UNEVEN)


def test_with_warn_ranks_train_on(tmp_path):
    """What becomes of them is the script's affair: here the others wait in vain at the end."""
    with training.start(
        tmp_path / "job", 2, "uneven.py", STEPS, "skips", TASKD_UNEVEN="warn"
    ) as job:
        job.until("a warning", lambda: told(job.result().output, UNEVEN))
        job.until("later steps", lambda: "rank 0 step 12 loss" in job.result().output)
        assert "The job ends" not in job.result().output


def test_ranks_that_a_repair_has_cut_off_are_compared_again(tmp_path):
    """A replacement has begun none by then, and each survivor was somewhere else."""
    result = training.taskd(
        tmp_path / "job", 3, "uneven.py", STEPS, "skips", faults="0:5:begin:kill"
    )
    assert "rank 0 replaced in" in result.output, result.output[-3000:]
    assert result.status == 1 and told(result.output, UNEVEN)
    assert "rank 1 began none" in result.output
