"""Ranks leave, and the framework goes on without them, told by taskd. Real: torch, gloo, the
launcher, all processes and kills. Substituted: the device calls of torch_npu. What is trained is
compared with a run in which the same ranks leave by hand, after the same update."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.mindio import lanes_by_hand
from tests.mindio.jobs import LAYOUTS, LIMIT, RANKS, STEPS, Job, Start

ELASTIC = "elastic-training"
PACE = "0.1"  # in which all ranks have come to the next step


@pytest.mark.parametrize(
    ("layout", "dies", "leave", "micro"),
    [pytest.param("sharded", 3, [3], 2, marks=pytest.mark.long), ("2x2", 3, [2, 3], 1)],
)
def test_the_others_compute_what_the_ranks_that_left_would_have_gloo_for_hccl(
    start: Start,
    tmp_path: Path,
    layout: str,
    dies: int,
    leave: list[int],
    micro: int,
) -> None:
    job = start(layout, "kill", dies, 20, strategy=ELASTIC, MICRO=str(micro), PACE=PACE)
    job.wait(lambda: bool(job.incidents()))
    job.kill_manager()
    log = job.folder / "taskd_log" / "manager.log"
    took_over = f"took over a job of {RANKS - len(leave)} ranks"
    job.wait(lambda: took_over in log.read_text())
    (job.out / "hurry").touch()
    assert job.process.wait(LIMIT) == 0, job.log
    (found,) = job.incidents()
    assert found["strategy"] == ELASTIC and found["ranks"] == [], found
    plain = lanes_by_hand.run(
        tmp_path, LAYOUTS[layout], STEPS, found["step"], -1, leave, MICRO=str(micro)
    )
    lanes_by_hand.assert_equal(job.out, plain, [r for r in range(RANKS) if r not in leave])
    for rank in leave:
        before = {s: v for s, v in job.losses(rank).items() if s < found["step"]}
        assert before == {
            s: v for s, v in lanes_by_hand.losses(plain, rank).items() if s < found["step"]
        }


def refused(job: Job) -> str:
    """The manager's log of a job that is saved in place of elastic training."""
    assert job.process.wait(LIMIT) == 75, job.log
    return (job.folder / "taskd_log" / "manager.log").read_text()


@pytest.mark.parametrize("fault", ["kill", pytest.param("cut", marks=pytest.mark.long)])
def test_a_fault_while_ranks_are_away_is_not_repaired_gloo_for_hccl(
    start: Start, fault: str
) -> None:
    """The framework goes on without ranks once, and has no handler for anything else meanwhile."""
    faults = ("kill", 3, 20, fault, 2, 40)
    job = start("sharded", *faults, strategy=f"retry,{ELASTIC},dump", MICRO="2", PACE=PACE)
    log = refused(job)
    for strategy in ("retry", ELASTIC):
        assert f"{strategy}: the framework repairs nothing until the ranks that are away" in log
    (folder,) = job.out.glob("checkpoint-*")
    assert {path.name for path in folder.iterdir()} == {"mp-0-part-0.pt", "mp-0-part-1.pt"}
    assert {torch.load(path)["step"] for path in folder.iterdir()} <= {40, 41}


def test_nor_is_one_between_an_update_and_the_end_of_its_step_gloo_for_hccl(start: Start) -> None:
    """The parameters are not gathered, and the handler has no rollback to do it."""
    job = start("sharded", strategy=ELASTIC + ",dump", DIES_UPDATED="3:20")
    assert "was stopped before it called tft_pause_train after update 20" in refused(job)
    assert (job.out / "checkpoint-20").exists()


@pytest.mark.parametrize(
    ("layout", "dies", "settings", "why"),
    [
        ("2x2", 1, {}, "rank 0, with which the framework writes its checkpoints and logs, would"),
        ("2x2", 3, {"ZIT": "0"}, "tft_init_processor was called without enable_zit"),
    ],
)
def test_what_is_not_possible_is_said_and_the_next_strategy_taken_gloo_for_hccl(
    start: Start, layout: str, dies: int, settings: dict[str, str], why: str
) -> None:
    job = start(layout, "kill", dies, 20, strategy=ELASTIC + ",dump", PACE=PACE, **settings)
    assert f"{ELASTIC} failed: {why}" in refused(job)
    workers = (job.folder / "taskd_log" / "worker-0.log").read_text()
    assert (f"elastic-training: not possible: {why}" in workers) is bool(settings)
