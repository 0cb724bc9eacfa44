"""Nodes are lost in every way that there is; standbys take their place, and the losses are those of
an undisturbed run."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import training
from cluster import STEPS, Cluster

STRATEGY = "retry,recover-in-place,recover"


def forge(machines, job, host, secret):
    """What the records port of that host's agent has answered to forged records."""
    command = [
        sys.executable,
        str(Path(__file__).parent / "forger.py"),
        job.env["MINDX_TASK_ID"],
        secret,
        "2",
    ]
    done = subprocess.run(
        machines.command(host, command),
        cwd=job.directory,
        env=job.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    lines, _, answers = done.stdout.partition(" ")
    assert int(lines) > 0
    return [answers.strip()] if answers.strip() else []


def test_a_node_dies_is_stopped_and_then_node_0_with_the_manager(hosts, tmp_path, reference):
    with Cluster(
        (machines := hosts(5)), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy=STRATEGY
    ) as job:
        job.standby(2, 3, 4)
        job.ready(3)
        # forged records, by whoever guesses at the secret and by a process that has it: they change
        # nothing of what follows
        assert forge(machines, job, 1, f"job id: {job.env['MINDX_TASK_ID']}") == []
        assert forge(machines, job, 0, job.env["TASKD_SECRET"]) == ["Fetched refused"]
        # killed: the standby has its place, and what is left of the old one is not heard
        machines.signal(1, signal.SIGKILL)
        first = job.repaired()
        assert first["strategy"] == "recover" and first["ranks"] == [2, 3], first
        assert "its process has ended" in " ".join(first["faults"])
        job.trains()
        # stopped, and on again when it has been replaced: it finds itself fenced, and ends
        stopped = job.host_of(2)
        machines.signal(stopped, signal.SIGSTOP)
        second = job.repaired()
        assert second["strategy"] == "recover" and "does not answer" in " ".join(
            second["faults"]
        ), second
        machines.signal(stopped, signal.SIGCONT)
        job.emptied(stopped)
        assert "this node has been replaced" in job.result().output
        job.trains()
        # a rank of the node that has moved is replaced on it
        os.kill(job.result().pids(3)[-1], signal.SIGKILL)
        assert job.repaired()["strategy"] == "recover-in-place"
        job.trains()
        # node 0 stands still: rank 0, the manager and the store move; on again, the old manager
        # learns that it is deposed
        machines.signal(0, signal.SIGSTOP)
        third = job.repaired()
        assert third["strategy"] == "recover" and third["ranks"] == [0, 1], third
        assert job.host_of(0) not in (0, 1, stopped)
        assert "in charge in term 2" in job.log("manager*.log")
        machines.signal(0, signal.SIGCONT)
        job.emptied(0)
        # a pod that is started now is told of node 0's first address, where nobody answers any more
        known = job.log("manager*.log").count("waits for a node")
        job.launch_standby(1)
        job.until(
            "a standby found the manager that has moved",
            lambda: job.log("manager*.log").count("waits for a node") > known,
        )
        assert "this agent goes there" in job.log("agent*.log")
        job.trains()
        result = job.end(0, stopped)
    training.assert_equal(result, reference, 4)
    assert not (job.directory / "forged").exists(), "what was in a forged record was executed"
    assert "denied: agent" in result.log("agent*.log")


@pytest.mark.long
def test_deaths_without_recover_in_place(hosts, tmp_path, reference):
    """Each costs its node: first the manager's; then one for which nobody is there yet; and the
    last one that has the state stays."""
    with Cluster(
        hosts(4), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy="retry,recover"
    ) as job:
        job.standby(2)
        job.ready(1)

        def kill(rank):
            os.kill(job.result().pids(rank)[-1], signal.SIGKILL)

        kill(1)
        first = job.repaired()
        assert first["strategy"] == "recover", first
        job.emptied(0)  # another is the manager
        job.trains()
        kill(2)
        job.until("its node was given up", lambda: job.launchers[1].poll() is not None)
        kill(0)
        job.until("the other stayed", lambda: "node 0 stays" in job.log("manager*.log"))
        time.sleep(11.0)  # a manager that lacks nodes says so after 10 s
        job.launch_standby(3, TASKD_MANAGER_ADDR=job.hosts.address(2))
        last = job.repaired()
        assert last["strategy"] == "recover" and {0, 2, 3} <= {*last["ranks"]}, last
        assert job.host_of(0) == 2 and job.host_of(2) == 3
        result = job.end(0, 1)
    training.assert_equal(result, reference, 4)
    # what is lost has been there, and the next pod comes by itself
    assert "nodes have come" not in result.log("manager*.log")


def test_a_network_is_cut_both_ways_and_one_way(hosts, tmp_path, reference):
    with Cluster(
        (machines := hosts(4)), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy=STRATEGY
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        gone = []
        for one_way in (False, True):
            host = job.host_of(2)
            others = [h for h in range(4) if h != host] if one_way else None
            machines.cut(host, others)
            closed = job.repaired()
            assert closed["strategy"] == "recover" and closed["ranks"] == [2, 3], closed
            job.trains()
            # what comes back is fenced: it ends by itself, and changes nothing
            machines.mend(host, others)
            job.emptied(host)
            gone.append(host)
        result = job.end(*gone)
    training.assert_equal(result, reference, 4)
    assert len(result.incidents) == 2


@pytest.mark.long
def test_the_manager_dies_also_in_the_middle_of_a_repair(hosts, tmp_path, reference):
    with Cluster(
        (machines := hosts(4)), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy=STRATEGY
    ) as job:
        job.standby(2, 3)
        job.ready(2)
        (manager,) = job.managers(0)
        os.kill(manager, signal.SIGKILL)
        job.trains()  # training does not stop for that
        job.until(
            "another manager was in charge",
            lambda: "in charge in term 2" in job.log("manager*.log"),
        )
        # all agents know of it: only then the next one is started on the same host at once
        job.ready(4)
        job.until("it was on the same host", lambda: len(job.managers(0)) == 1)
        # a fault while there is none is repaired by the next one
        (manager,) = job.managers(0)
        os.kill(manager, signal.SIGKILL)
        os.kill(job.result().pids(1)[-1], signal.SIGKILL)
        closed = job.repaired()
        assert closed["strategy"] == "recover-in-place" and closed["ranks"] == [1], closed
        job.trains()
        # a node and, before anybody has its place, the manager
        job.until("the next one was there, too", lambda: len(job.managers(0)) == 1)
        (manager,) = job.managers(0)
        machines.signal(1, signal.SIGKILL)
        job.until(
            "the manager had noticed", lambda: "node 1 (ranks 2-3)" in job.log("manager*.log")
        )
        os.kill(manager, signal.SIGKILL)
        job.until(
            "ranks 2 and 3 trained elsewhere",
            lambda: all(len(job.result().pids(r)) == 2 for r in (2, 3)),
        )
        job.repaired()
        job.trains()
        # the manager's node: its machine says that nobody is left there to be waited for
        job.until("a successor was kept ready", lambda: "is kept ready" in job.log("agent*.log"))
        machines.signal(0, signal.SIGKILL)
        closed = job.repaired()
        assert closed["strategy"] == "recover" and closed["ranks"] == [0, 1], closed
        assert "lost with the previous manager: its process has ended" in closed["faults"][0]
        job.trains()
        result = job.end(0, 1)
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_half_of_the_agents_is_lost_until_the_pod_is_started_again(hosts, tmp_path, reference):
    """One of two nodes, and nobody waits: no majority, nothing is given away. The launcher that is
    started again, as it was, makes one."""
    with Cluster(
        (machines := hosts(2)), tmp_path / "job", 2, 2, "steered.py", STEPS, strategy=STRATEGY
    ) as job:
        job.trains()
        machines.signal(1, signal.SIGKILL)
        job.until(
            "the node was waited for",
            lambda: "node 1 waits for a standby" in job.log("manager*.log"),
        )
        job.launch(1, 1)
        closed = job.repaired()
        assert closed["strategy"] == "recover" and closed["ranks"] == [2, 3], closed
        assert "the job is under way" in job.result().output
        result = job.end()
    training.assert_equal(result, reference, 4)


@pytest.mark.long
def test_ranks_of_different_nodes_that_begin_different_collectives(hosts, tmp_path):
    """One rank on each: nobody on a node to compare with."""
    more = ("3000", "skips", "300", "0.05")
    with Cluster(
        hosts(2), tmp_path / "job", 2, 1, "uneven.py", *more, strategy="retry,recover-in-place"
    ) as job:
        job.until("it had ended", lambda: "The job ends" in job.result().output)
        said = job.result().output
        assert "rank 1: by step " in said and "fewer collectives than rank 0 (1 fewer)" in said
        printed = [int(step) for step in re.findall(r"rank \d step (\d+) loss", said)]
        assert 300 < max(printed) < 600, max(printed)
