"""Training loops of real ranks, some of which go away."""

from __future__ import annotations

import pytest

from tests.worker import shrinking


@pytest.mark.parametrize(
    "case",
    [
        "nobody",
        "a_last_rank",
        "the_first_rank",
        "own_buffers",
        "waiting_averages",
        "waiting_sums",
        "waiting_averages_of_two",
    ],
)
def test_the_job_goes_on_as_if_all_were_there(case, tmp_path):
    shrinking.ran(f"shrunk_shares.{case}", FOLDER=str(tmp_path))


@pytest.mark.parametrize(
    "case", ["no_lane_of_hsdp", "a_lane_of_hsdp", "two_lanes_of_hsdp", "waiting_averages_of_hsdp"]
)
def test_lanes_of_hsdp(case, tmp_path):
    shrinking.ran(f"shrunk_shares.{case}", 6, FOLDER=str(tmp_path))
