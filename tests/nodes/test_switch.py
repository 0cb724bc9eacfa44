"""A node that is sub-healthy moves to a standby while the job trains, and what goes wrong on the
way leaves it where it is."""

from __future__ import annotations

import os
import re
import signal
import subprocess

import pytest
import training
from cluster import STEPS, Cluster

STRATEGY = "retry,recover-in-place,recover"


def answer(asked: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = asked.communicate(timeout=90)
    return asked.returncode, out


def committed(job: Cluster, rank: int) -> list[int]:
    """Its steps, as often as they were committed."""
    return [int(step) for kind, step, _, _ in job.result()._lines(rank) if kind == "step"]


@pytest.mark.long
def test_nodes_of_ascend_operator_move(hosts, tmp_path, reference):
    """It takes a worker's status other than 0 for the job's failure, and any end of the first pod
    for the job's: that one stays until it is deleted."""
    machines = hosts(4)
    with Cluster(
        machines,
        tmp_path / "job",
        2,
        2,
        "steered.py",
        STEPS,
        strategy=STRATEGY,
        TASKD_SUBHEALTHY_STRATEGY="hotSwitch",
        MINDX_SERVER_IP=machines.address(3),
        TASKD_CLUSTERD="off",
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        for node in (1, 0):
            status, text = answer(job.subhealth(node))
            assert status == 0 and f"node {node} has moved to standby" in text, text
            job.repaired()
            job.trains()
        assert job.launchers[1].wait(30) == 0
        result = job.end(1, 0)
        assert job.launchers[0].poll() is None
    training.assert_equal(result, reference, 4)
    assert "this pod stays until it is deleted" in result.output


def test_a_node_moves_and_then_node_0(hosts, tmp_path, reference):
    machines = hosts(4)
    with Cluster(
        machines,
        tmp_path / "job",
        2,
        2,
        "steered.py",
        STEPS,
        strategy=STRATEGY,
        TASKD_SUBHEALTHY_STRATEGY="hotSwitch",
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        before = {r: job.result().pids(r) for r in range(4)}
        status, text = answer(job.subhealth(1))
        assert status == 0 and "node 1 has moved to standby" in text, (
            text,
            job.log("*.log")[-9000:],
        )
        first = job.repaired()
        assert first["strategy"] == "hot-switch" and first["ranks"] == [2, 3], first
        job.trains()
        assert job.host_of(2) in (2, 3) and job.host_of(3) == job.host_of(2)
        assert job.result().pids(0) == before[0] and job.result().pids(1) == before[1]
        job.emptied(1)
        assert "node 1 has moved: its link flaps" in job.result().output
        # no step was done twice: all stood at a step boundary
        assert all(len(set(done)) == len(done) for done in (committed(job, r) for r in range(4)))
        # a rank of the node that has moved is replaced on it
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains()
        # node 0, with the manager and the store; the fault code of a device says so
        status, text = answer(job.inject("code", "80DE0207", "--rank", "1"))
        assert status == 0 and "it moves to a standby" in text, text
        second = job.repaired()
        assert second["strategy"] == "hot-switch" and second["ranks"] == [0, 1], (second, text)
        job.trains()
        assert job.host_of(0) in (2, 3) and job.host_of(0) != job.host_of(2)
        # a device that cannot be used any more: its node is given up, although the ranks there
        # could be replaced
        job.emptied(0)
        # two may be started, of which one is elected and the other leaves
        job.until(
            "there was one manager again",
            lambda: (
                "in charge in term 2" in job.log("manager*.log")
                and len([h for h in range(4) if job.managers(h)]) == 1
            ),
        )
        manager = next(h for h in range(4) if job.managers(h))
        # which has left host 0 with its node
        job.launch_standby(0, TASKD_MANAGER_ADDR=machines.address(manager))
        given_up = job.host_of(3)
        answers: list[tuple[int, str]] = []

        def answered() -> bool:
            """The new manager hears of the nodes one after the other."""
            answers.append(answer(job.inject("code", "80818C00", "--rank", "3")))
            return "is on no node that has joined" not in answers[-1][1]

        job.until("the new manager knew of node 1", answered)
        status, text = answers[-1]
        assert status == 0 and "required: replace the node" in text, text
        third = job.repaired()
        assert third["strategy"] == "recover" and third["ranks"] == [2, 3], third
        job.trains()
        assert job.host_of(2) == job.host_of(3) == 0
        job.emptied(given_up)
        result = job.end(1, given_up)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_moves_that_fail_and_one_that_does_not(hosts, tmp_path, tmp_path_factory):
    """What fails leaves the job where it is. When the last move comes, what the standby has
    prepared is some passes behind the job; loaders and random numbers go on where they were."""
    arguments = ("loader.py", "distributed", "60", "0.05")  # passes of 6 steps
    reference = training.References(tmp_path_factory.getbasetemp())(4, *arguments)
    # of the ranks that are prepared: one ends, once, while the other one waits
    faults = "3:1:protected:exit3,2:1:protected:nap:3"
    environment = {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch", "TEST_FAULTS": faults}
    enough = tmp_path / "job" / "enough-1"
    with Cluster(
        hosts(3), tmp_path / "job", 2, 2, *arguments, strategy=STRATEGY, **environment
    ) as job:
        job.standby(2)
        job.ready(1)
        pids = {r: job.result().pids(r) for r in range(4)}
        # the script fails on the standby: the job has not even paused, and the standby waits again
        status, text = answer(job.subhealth(1))
        assert (
            status == 1
            and "cannot be node 1: rank 3 exited" in text
            and "the job is unaffected" in text
        ), text
        job.trains()
        assert job.result().incidents == []
        # a rank of the standby stands still when the node is being moved
        asked = job.subhealth(1)
        job.until("rank 3 was ready", lambda: half_ready(job) == 1)
        os.kill(
            int(re.findall(r"rank 3: replacement 1 is pid (\d+)", job.log("agent*.log"))[-1]),
            signal.SIGSTOP,
        )
        enough.touch()
        status, text = answer(asked)
        assert status == 1 and "the job is unaffected" in text, text
        enough.unlink()
        closed = job.repaired()
        assert (
            closed["strategy"] == "retry"
            and closed["ranks"] == []
            and "hot-switch" in closed["tried"][0]
        ), closed
        job.trains()
        assert {r: job.result().pids(r) for r in range(4)} == pids
        # and now nothing is in the way
        asked = job.subhealth(1)
        job.until("rank 3 was ready", lambda: half_ready(job) == 2)
        job.trains(13)
        enough.touch()
        status, text = answer(asked)
        assert status == 0, (text, job.log("worker*.log")[-5000:])
        assert job.repaired()["strategy"] == "hot-switch"
        job.trains()
        assert job.host_of(2) == 2
        result = job.end(1)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_the_manager_is_killed_in_the_middle_of_moves(hosts, tmp_path, reference):
    """The next one finishes the move; what the standby has prepared is used if it can be."""
    environment = {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch"}
    with Cluster(
        hosts(3), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy=STRATEGY, **environment
    ) as job:
        job.standby(2)
        job.ready(1)
        killed_at(job, " prepares to become node ", 2)
        assert job.repaired()["strategy"] == "hot-switch"
        job.trains()
        assert job.host_of(2) == job.host_of(3) == 2
        assert job.log("manager*.log").count(" prepares to become node ") == 1
        job.emptied(1)
        job.standby(1)
        known = job.log("manager*.log").count("waits for a node")
        job.until(
            "the standby waited",
            lambda: job.log("manager*.log").count("waits for a node") > known,
        )
        killed_at(job, " becomes node ", 3)
        # whether the dead manager's order to give up arrived, or only its successor's, is chance
        job.until(
            "the node had moved",
            lambda: "replaced: node 1 has moved" in job.result().output.split("== host 2")[1],
        )
        job.trains()
        assert job.host_of(2) == job.host_of(3) == 1
        assert "all ranks are to be stopped" not in job.log("manager*.log")
        result = job.end(2)
    training.assert_equal(result, reference, 4)


def killed_at(job: Cluster, order: str, term: int) -> None:
    """Move node 1, and kill the manager once it has given the order."""
    known = job.log("manager*.log").count(order)
    asked = job.subhealth(1)
    job.until("the order", lambda: job.log("manager*.log").count(order) > known)
    os.kill(job.managers(0)[0], signal.SIGKILL)
    job.until(
        "another manager was in charge",
        lambda: f"in charge in term {term}" in job.log("manager*.log"),
    )
    asked.kill()
    asked.communicate()


def half_ready(job: Cluster) -> int:
    """How often one of the two ranks of a standby was ready."""
    return job.log("agent*.log").count("1 of 2 ranks of the node to be taken over are ready")


@pytest.mark.long
def test_all_ranks_are_restarted_where_they_are_after_node_0_has_moved(hosts, tmp_path, reference):
    """fault-retry-times: torch's own rendezvous is on a launcher that is gone, and the job starts
    anew all the same."""
    environment = {"TASKD_SUBHEALTHY_STRATEGY": "hotSwitch", "TASKD_FAULT_RETRY_TIMES": "2"}
    with Cluster(
        hosts(3), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy="exit", **environment
    ) as job:
        job.standby(2)
        job.ready(1)
        answer(job.subhealth(0))  # its manager goes with it, which may be before it has answered
        assert job.repaired()["strategy"] == "hot-switch"
        job.emptied(0)
        job.trains()
        for lives, rank in ((2, 3), (3, 1)):
            os.kill(job.result().pids(rank)[-1], signal.SIGKILL)
            job.until(
                "all ranks had begun anew",
                lambda n=lives: all(committed(job, r).count(0) == n for r in range(4)),
            )
            job.until(
                "they trained",
                lambda n=lives: all(committed(job, r).count(4) == n for r in range(4)),
            )
        result = job.end(0)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["", *training.long("retry", "recover-in-place", "exit")])
def test_the_label_alone_or_with_any_strategy(hosts, tmp_path, tmp_path_factory, strategy):
    """The pod that the operator makes for a node that is to move is started as that node was."""
    (pod := tmp_path / "pod").mkdir()
    (pod / "labels").write_text('subHealthyStrategy="hotSwitch"')
    (pod / "annotations").write_text(f'recover-strategy="{strategy}"' if strategy else "")
    # without PROCESS_RECOVER `taskd run` would repair where nothing is named
    environment = {"TASKD_POD_INFO": str(pod), "PROCESS_RECOVER": "on"}
    arguments = ("steered.py", "120")
    with Cluster(hosts(3), tmp_path / "job", 2, 1, *arguments, strategy="", **environment) as job:
        job.trains()
        job.launch(2, 1)
        job.ready(1)
        status, text = answer(job.subhealth(1))
        assert status == 0 and "node 1 has moved to standby" in text, text
        incident = job.repaired()
        assert (incident["strategy"], incident["ranks"]) == ("hot-switch", [1]), incident
        job.trains()
        assert job.host_of(1) == 2
        result = job.end(1)
    reference = training.References(tmp_path_factory.getbasetemp())(2, *arguments)
    training.assert_equal(result, reference, 2)
