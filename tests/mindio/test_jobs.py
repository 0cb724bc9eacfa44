"""A PyTorch script that knows mindio_ttp alone, 4 ranks, killed, poisoned and cut. Real: torch,
gloo, the launcher, all processes and kills, a page that the kernel reports as lost. Substituted:
the device calls of torch_npu, by scripts/gloo_device.py."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.mindio.jobs import LIMIT, RANKS, SCRIPT, Job, Start


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], object]:
    known: dict[str, object] = {}

    def results(layout: str) -> object:
        if layout not in known:
            job = Job(tmp_path_factory.mktemp(layout), layout)
            try:
                known[layout] = job.results()
            finally:
                job.close()
        return known[layout]

    return results


@pytest.mark.long
def test_a_script_that_is_edited_under_way_gloo_for_hccl(
    tmp_path: Path, undisturbed: Callable[[str], object]
) -> None:
    for name in (SCRIPT.name, "sharded.py", "lanes.py", "gloo_device.py"):
        shutil.copy(SCRIPT.parent / name, tmp_path / name)
    script = tmp_path / SCRIPT.name
    job = Job(tmp_path / "job", "2x2", script=script)
    try:
        job.begun(10)
        text = script.read_text()
        assert "1_000_003 * " in text  # a batch's seed
        script.write_text(text.replace("1_000_003 * ", "1_000_007 * "))
        (tmp_path / "gloo_device.py").unlink()
        job.kill(1, 15)
        assert job.results() == undisturbed("2x2")
        assert "pretrain.py was changed since the job started" in job.log
    finally:
        job.close()


def test_one_fault_after_the_other_gloo_for_hccl(
    start: Start, undisturbed: Callable[[str], object]
) -> None:
    """Ranks die, one of them twice; an exception ends a process; memory and link faults need no new
    one."""
    faults = (
        *("kill", 0, 10, "kill", 3, 18, "poison", 1, 25, "cut", 1, 30, "late", 1, 35),
        *("raise", 2, 40, "kill", 3, 46),
    )
    job = start("2x2", *faults)
    assert job.results() == undisturbed("2x2")
    found = job.incidents()
    assert [(i["strategy"], i["ranks"]) for i in found] == [
        ("recover-in-place", [0]),
        ("recover-in-place", [3]),
        *[("retry", [])] * 3,
        ("recover-in-place", [2]),
        ("recover-in-place", [3]),
    ]
    assert "ValueError: a defect that shows once in step 40" in str(found[5]["faults"])
    types = [(job.out / f"type-{rank}").read_text() for rank in range(4)]
    assert types == ["worker", "pod", "worker", "worker"]


def test_a_part_of_a_sharded_optimizer_comes_from_its_replica_gloo_for_hccl(
    start: Start, undisturbed: Callable[[str], object]
) -> None:
    job = start("sharded")
    job.kill(2, 20)
    assert job.results() == undisturbed("sharded")
    assert "rank 2 from rank 0" in (job.folder / "taskd_log" / "manager.log").read_text()


@pytest.mark.parametrize(
    ("faults", "more", "step", "replaced"),
    [
        (("precision", "all", 25), {}, 5, []),
        (("precision", 1, 25), {"LOAD_FAULT": "kill"}, 5, [2]),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in (
                (("precision", 1, 25), {}, 5, []),
                (("precision", 1, 25), {"LOAD_FAULT": "raise"}, 5, []),
                (("precision", 1, 25, "kill", 1, 26), {}, 5, []),
                (("precision", 1, 25, "early", 3, 25), {}, 5, []),
                (("early", 1, 28), {}, 25, []),
                (("early", 1, 28), {"LOAD_FAULT": "kill"}, 25, [2]),
            )
        ),
    ],
)
def test_where_no_rank_has_a_right_state_all_load_a_checkpoint_gloo_for_hccl(
    start: Start,
    undisturbed: Callable[[str], object],
    faults: tuple[object, ...],
    more: dict[str, str],
    step: int,
    replaced: list[int],
) -> None:
    job = start("2x2", *faults, SAVE_INTERVAL="5", **more)
    assert job.results() == undisturbed("2x2")
    found, *later = job.incidents()
    assert (found["step"], found["ranks"]) == (step, replaced), found
    # of all, one that was stopped before it raised may raise when the step runs again
    if faults[1] != "all":
        assert all(incident["step"] > 20 for incident in later), "it is loaded once"


@pytest.mark.long
def test_a_part_that_exists_once_comes_from_the_last_checkpoint_gloo_for_hccl(
    start: Start, undisturbed: Callable[[str], object]
) -> None:
    """MindSpeed-LLM's --distributed-optimizer-no-replica; and a manager that is new knows of it."""
    job = start("single", SAVE_INTERVAL="5")
    job.begun(12)
    job.kill_manager()
    job.kill(2, 18)
    assert job.results() == undisturbed("single")
    (found,) = job.incidents()
    # wherever rank 2 was by the time it was killed
    assert found["step"] >= 15 and found["step"] % 5 == 0 and found["ranks"] == [2]


@pytest.mark.parametrize(
    ("fault", "remedy"),
    [
        ("precision", "again from the checkpoint of step 5 (Megatron: with 5 in"),
        pytest.param("early", "again from the last checkpoint.", marks=pytest.mark.long),
    ],
)
def test_without_one_the_job_ends_and_says_what_to_start_from_gloo_for_hccl(
    start: Start, fault: str, remedy: str
) -> None:
    """No rank goes on with the state that is wrong."""
    job = start("2x2", fault, 1, 25)
    assert job.process.wait(LIMIT) != 0
    assert "could not load" in job.log and f"Start the job {remedy}" in job.log
    assert not any(step > 25 for rank in range(RANKS) for step in job.losses(rank))
    assert not job.incidents()


def test_the_last_checkpoint_has_each_part_once_gloo_for_hccl(start: Start) -> None:
    job = start("sharded", strategy="dump")
    job.kill(1, 20)
    assert job.process.wait(LIMIT) == 75  # the state is saved
    assert "the framework goes on from that checkpoint" in job.log
    assert "--resume" not in job.log  # which is of taskd's own dumps
    (folder,) = job.out.glob("checkpoint-*")
    assert {p.name for p in folder.iterdir()} == {"mp-0-part-0.pt", "mp-0-part-1.pt"}
    step = int(folder.name.partition("-")[2])
    assert step >= 20  # the job trains on until the signal arrives
    assert all(torch.load(p)["step"] == step for p in folder.iterdir())


@pytest.mark.long
def test_replicas_that_are_lost_together_end_the_job_with_the_reason_gloo_for_hccl(
    start: Start,
) -> None:
    job = start("2x2")
    job.kill(1, 20)
    os.kill(int((job.out / "pid-3").read_text()), signal.SIGKILL)
    assert job.process.wait(LIMIT) != 0
    log = (job.folder / "taskd_log" / "manager.log").read_text()
    assert "no replica has the state of optimizer 0 of rank" in log
