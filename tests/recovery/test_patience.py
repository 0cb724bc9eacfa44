"""A replacement that only waits has the patience of a first start."""

from __future__ import annotations

import pytest
import training

STEPS = "40"


@pytest.mark.parametrize("where", ["setup", *training.long("loader")])
def test_a_replacement_that_waits_is_not_hung(tmp_path, reference, where):
    """Longer than a rank may wait in a collective that was cut (core.settings idle)."""
    with training.start(
        tmp_path / "job", 2, "waits.py", STEPS, where, WAIT="23", TASKD_HANG_LIMIT="1"
    ) as job:
        job.trains()
        job.kill(1)
        (incident,) = job.repaired()
        result = job.end()
    assert len(incident["faults"]) == 1, incident
    training.assert_equal(result, reference(2, "waits.py", STEPS, "none"), 2)


@pytest.mark.long
@pytest.mark.parametrize("where", ["loader", "setup"])
def test_the_patience_is_a_setting(tmp_path, where):
    with training.start(
        tmp_path / "job", 2, "waits.py", STEPS, where, WAIT="120", TASKD_SET_UP_LIMIT="8"
    ) as job:
        job.trains()
        job.kill(1)
        job.until("it was given up", lambda: job._process.poll() is not None)
        result = job.end()
    assert result.status == 1
    text = training.paragraph(result)
    assert "was not ready within 8 s" in text or "has waited for" in text, text
