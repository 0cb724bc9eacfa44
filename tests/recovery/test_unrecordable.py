"""A job with state that cannot be recorded trains on, or ends where a setting asks for that."""

from __future__ import annotations

import pytest
import training

from taskd.worker.protection import ALONE

SAID = {"early": "this job is not protected", "late": "training continues without protection"}


@pytest.mark.parametrize("when", SAID)
def test_it_trains_on(tmp_path, when):
    result = training.taskd(tmp_path, 2, "unrecordable.py", when)
    assert result.status == 0 and sorted(result.steps(0)) == list(range(6)), result.output
    assert SAID[when] in result.output and "cannot be recorded" in result.output


@pytest.mark.parametrize("when", SAID)
def test_it_ends_where_that_is_asked_for(tmp_path, when):
    result = training.taskd(tmp_path, 2, "unrecordable.py", when, TASKD_UNRECORDABLE="refuse")
    assert result.status == 93 and max(result.steps(0), default=0) == 0, result.output
    assert "TASKD_UNRECORDABLE=refuse: this job would not be protected" in result.output


def test_a_job_without_a_launcher_of_taskd_says_that_it_is_not_protected(tmp_path):
    result = training.undisturbed(tmp_path, 2, "unrecordable.py", "early")
    assert result.status == 0 and result.output.count(ALONE) == 1
