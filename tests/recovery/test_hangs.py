"""Ranks that make no progress: the one that hangs is found and replaced, and a rank that is slow
for a good reason is left alone.

TASKD_HANG_LIMIT stands below its default so that the tests need not wait.
"""

from __future__ import annotations

import re

import pytest
import training

from tests.lab.troubleshooting import told

STEPS = "20"
SOON = {"TASKD_HANG_LIMIT": "0.5", "TASKD_STANDSTILL": "1"}


def test_who_hangs_is_replaced(tmp_path, reference):
    """In one job, one hang after the other: in the body, the tail, the loader and between an update
    and its end, two ranks at once."""
    moments = (
        (1, 2, "begin", "stop"),
        (2, 5, "begin", "loop_in_python"),
        (3, 5, "begin", "deadlock"),
        (0, 8, "tail", "loop_with_the_lock"),
        (1, 11, "load", "wait_for_data"),
        (2, 14, "tail", "deadlock"),
    )
    faults = ",".join(":".join(map(str, moment)) for moment in moments)
    result = training.taskd(
        tmp_path / "job", 4, "loader.py", "distributed", "3", faults=faults, TASKD_HANG_LIMIT="1.5"
    )
    training.assert_equal(result, reference(4, "loader.py", "distributed", "3"), 4)
    assert [len(result.pids(rank)) - 1 for rank in range(4)] == [1, 2, 2, 1]
    assert {i["strategy"] for i in result.incidents} == {"recover-in-place"}
    told = " ".join(fault for i in result.incidents for fault in i["faults"])
    assert "no progress for" in told and "it does not answer" in told, told
    causes = result.log("agent-0.log")
    assert "killed by SIGKILL (by its agent: " in causes and "by another process" not in causes
    stacks = stacks_of(result)
    for rank, _, _, kind in moments:
        words = "no stacks: stopped by a signal" if kind == "stop" else f"in {kind}"
        assert any(words in text for text in stacks[rank]), (kind, stacks[rank])


def test_who_is_slow_is_left_alone(tmp_path, reference):
    """A long first step, a checkpoint that was announced, code between two steps, a compilation, a
    step that is long on all ranks.

    Each but the first lasts until a progress probe has judged it. Ranks remember how long a step
    took, so the long attempts are then cut short by a broken link: one that is repeated does not
    count.
    """
    naps = (
        "1:0:begin:nap2.5",
        "0:5:checkpoint:nap",
        "1:8:between:nap",
        "0:12:compile:nap",
        "0:16:begin:work",
        "1:16:begin:work",
    )
    cuts = ("0:5:computed:cut", "1:9:computed:cut", "0:12:computed:cut")
    seen = {
        5: "rank 0 is behind the others (step 5, computing, collective 0), within its limit",
        8: "rank 1 is behind the others (step 9, committed, collective 0), within its limit",
        12: "rank 0 is behind the others (step 12, computing, collective 0), within its limit",
        16: "no rank is behind: all are in the same place",
    }
    with training.start(
        tmp_path / "job", 2, "patient.py", STEPS, faults=",".join(naps + cuts), TASKD_HANG_LIMIT="1"
    ) as job:
        for step, words in seen.items():
            job.until(
                f"the progress probe found {words!r}",
                lambda words=words: words in job.result().log("manager.log"),
            )
            (job.directory / f"enough-{step}").touch()
        result = job.end()
    training.assert_equal(result, reference(2, "patient.py", STEPS), 2)
    assert [(i["strategy"], i["step"], i["ranks"]) for i in result.incidents] == [
        ("retry", step, []) for step in (5, 9, 12)
    ]
    assert all("a collective failed" in fault for i in result.incidents for fault in i["faults"])
    assert len(result.pids(0)) == len(result.pids(1)) == 1


@pytest.mark.long
def test_the_watchdog_can_be_switched_off(tmp_path, reference):
    """A nap of twice the default limit, in a step that takes a few milliseconds."""
    result = training.taskd(
        tmp_path / "job", 2, "patient.py", STEPS, faults="1:6:begin:nap4", TASKD_HANG_LIMIT="off"
    )
    training.assert_equal(result, reference(2, "patient.py", STEPS), 2)
    assert result.incidents == [] and len(result.pids(1)) == 1


def stacks_of(result: training.Result) -> dict[int, list[str]]:
    """rank -> what its agent logged before each of its processes was ended."""
    found: dict[int, list[str]] = {}
    for head in re.split(r"(?m)^(?=\d{4}-\d\d-\d\d )", result.log("agent-0.log")):
        match = re.search(r"rank (\d+) \(pid \d+\):(\n| no stacks)", head)
        if match:
            found.setdefault(int(match[1]), []).append(head)
    return found


def test_where_all_stand_still(tmp_path, reference):
    """No rank is behind: who is somewhere else than most is replaced, else all are."""
    moments = ("0:5:begin", "1:5:begin", "2:5:begin", "0:9:begin", "1:9:begin", "2:9:begin")
    kinds = ("loop_in_python",) * 5 + ("work",)
    faults = ",".join(map(":".join, zip(moments, kinds, strict=True)))
    result = training.taskd(tmp_path / "job", 3, "mlp.py", "12", faults=faults, **SOON)
    training.assert_equal(result, reference(3, "mlp.py", "12"), 3)
    first, second = result.incidents
    assert "no rank has made progress" in first["faults"][0], first
    assert re.search(r"ranks \[0, 1, 2\]: .*\(loop_in_python\)", first["faults"][0]), first
    assert [len(result.pids(rank)) - 1 for rank in range(3)] == [2, 2, 2]
    # the others never end their step by themselves
    other = r"rank 2: .*\(compute\), while most ranks are .*\(loop_in_python\)"
    assert re.search(other, second["faults"][0]), second


def test_where_new_processes_stand_still_too_the_state_is_saved(tmp_path, reference):
    faults = ",".join(f"{rank}:5:begin:deadlock:9" for rank in range(2))
    place = tmp_path / "dumps"
    result = training.taskd(
        tmp_path / "job",
        2,
        "mlp.py",
        "12",
        faults=faults,
        TASKD_DUMP_PATH=str(place),
        TASKD_SET_UP_LIMIT="8",
        **SOON,
    )
    assert result.status == 75 and (place / "step-5").exists(), result.output
    assert told(result.output, "no rank has made progress for N s")
    again = training.taskd(tmp_path / "job", 2, "mlp.py", "12", TASKD_RESUME_PATH=str(place))
    training.assert_equal(again, reference(2, "mlp.py", "12"), 2)
