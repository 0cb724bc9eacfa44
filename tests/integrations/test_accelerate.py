"""`taskd.protect(accelerator=accelerator)` in loops of a script's own."""

from __future__ import annotations

import pytest
import training
from plain_trainers import ACCELERATED

FAULTS = (
    "0:0:begin:kill",
    "1:1:backward:kill",  # in the middle of an accumulation
    "0:3:tail:kill",
    "1:5:tail:kill",  # the last batch of an epoch
    "0:6:begin:kill",
    "0:2:evaluate:kill",
    "1:12:tail:kill",
)


@pytest.mark.parametrize("kind", ["calls", *training.long("batches", "uneven")])
def test_bit_for_bit(tmp_path, reference, kind):
    result = training.begin(
        tmp_path / "job",
        2,
        ACCELERATED,
        str(tmp_path / "job"),
        kind,
        faults=",".join(FAULTS),
    )
    with result as job:
        training.assert_equal(job.end(), reference(2, ACCELERATED, kind), 2)


def test_a_pass_that_skips_batches_is_refused(tmp_path):
    """Where a rank was killed in one the job stood still."""
    job = tmp_path / "job"
    result = training.launch(job, 2, ACCELERATED, str(job), "skipping")
    assert result.status == 1
    assert "UnsupportedState: job.batches() cannot repeat a pass of skip_first" in result.output
