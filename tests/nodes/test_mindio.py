"""A script that knows mindio_ttp alone, 2 nodes x 2 ranks: a node is lost, that of the manager and
of MASTER_ADDR too, and a standby takes its place."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from cluster import Forked, incidents
from training import environment

from taskd.adaptor.mindio import alias
from tests.mindio import lanes_by_hand

SCRIPT = Path(__file__).parents[1] / "mindio" / "scripts" / "pretrain.py"
STEPS, LIMIT = 300, 120.0


def start(hosts, folder, layout="22", nodes=2, ranks=2, **more):
    """`layout`: model-parallel ranks, and replicas."""
    (folder / "out").mkdir(parents=True)
    alias.install(folder)
    path = f"{folder}:{Path(__file__).parents[2]}"
    script = [str(SCRIPT), *layout, str(STEPS), str(folder / "out")]
    settings = environment(folder, PYTHONPATH=path, **{"SAVE_INTERVAL": "5", **more})
    return Forked(hosts, folder, nodes, ranks, script, settings)


def until(job, what, condition):
    due = time.monotonic() + LIMIT
    while not condition():
        logs = [p.read_text()[-3000:] for p in sorted(job.directory.glob("output-*"))]
        assert time.monotonic() < due, f"{what}\n" + "\n".join(logs)
        time.sleep(0.05)


def steps(job, rank):
    path = job.directory / "out" / f"losses-{rank}"
    rows = path.read_text().splitlines() if path.exists() else []
    return max((int(row.split()[0]) for row in rows if len(row.split()) == 3), default=-1)


def trained(job):
    ends = [job.directory / "out" / f"end-{rank}" for rank in range(job.world)]
    until(job, "the ranks have not ended", lambda: all(end.exists() for end in ends))
    return [end.read_text() for end in ends]


@pytest.fixture(scope="module")
def undisturbed():
    return {}


@pytest.mark.long
@pytest.mark.parametrize(("host", "layout"), [(1, "22"), (0, "22"), (1, "11"), (0, "11")])
def test_a_standby_takes_the_place_of_a_lost_node(hosts, tmp_path, undisturbed, host, layout):
    """Where nothing is there twice, from the last checkpoint."""
    lab = hosts(3)
    if layout not in undisturbed:
        with start(lab, tmp_path / "plain", layout) as job:
            undisturbed[layout] = trained(job)
    with start(lab, tmp_path / "job", layout) as job:
        job.launch_standby(2)
        manager = job.directory / "log" / "manager.log"
        until(
            job,
            "no standby waits",
            lambda: manager.exists() and "waits for a node" in manager.read_text(),
        )
        until(job, "no step is done", lambda: min(steps(job, r) for r in range(4)) >= 10)
        assert lab.signal(host, signal.SIGKILL)
        assert trained(job) == undisturbed[layout]


ALONE = "retry,recover-in-place,elastic-training,dump"


def between_two_steps(job):
    """Wait until the ranks wait before their next step."""
    begun = steps(job, 0)
    due = time.monotonic() + LIMIT
    while steps(job, 0) == begun:
        assert time.monotonic() < due, "no step follows"
        time.sleep(0.002)
    time.sleep(0.03)


@pytest.mark.long
@pytest.mark.parametrize(("layout", "nodes", "ranks"), [("22", 2, 2), ("12", 4, 1)])
def test_a_node_leaves_and_comes_back(hosts, tmp_path, layout, nodes, ranks):
    """What is trained is what it is where the same ranks leave and come back by hand."""
    lab = hosts(nodes + 1)
    more = {"TASKD_RECOVER_STRATEGY": ALONE, "PACE": "0.1", "MICRO": "2", "SAVE_INTERVAL": "0"}
    leave = [r for r in range(4) if r // ranks == nodes - 1]
    stay = [r for r in range(4) if r not in leave]
    with start(lab, tmp_path / "job", layout, nodes, ranks, **more) as job:
        until(job, "no step is done", lambda: min(steps(job, r) for r in range(4)) >= 10)
        between_two_steps(job)
        assert lab.signal(nodes - 1, signal.SIGKILL)
        until(job, "the job has not shrunk", lambda: len(incidents(job.directory)) == 1)
        went_on = steps(job, 0) + 5
        until(job, "the others do not train", lambda: min(steps(job, r) for r in stay) > went_on)
        job.launch_standby(nodes)
        until(job, "the job has not grown", lambda: len(incidents(job.directory)) == 2)
        (job.directory / "out" / "hurry").touch()
        # it is as any other job again
        os.kill(int((job.directory / "out" / f"pid-{leave[-1]}").read_text()), signal.SIGKILL)
        ends = trained(job)
    shrunk, grown, last = incidents(job.directory)
    assert (shrunk["strategy"], shrunk["ranks"]) == ("elastic-training", [])
    assert (grown["strategy"], grown["ranks"]) == ("grow", leave)
    assert (last["strategy"], last["ranks"]) == ("recover-in-place", [leave[-1]])
    away = shrunk["step"], grown["step"], leave
    plain = lanes_by_hand.run(tmp_path, tuple(layout), STEPS, *away, MICRO="2")
    assert ends == [(plain / f"end-{rank}").read_text() for rank in range(4)]
    for rank in stay:
        assert lanes_by_hand.losses(job.directory / "out", rank) == lanes_by_hand.losses(
            plain, rank
        )


@pytest.mark.long
def test_where_ranks_die_while_they_come_back_the_state_is_saved(hosts, tmp_path):
    lab = hosts(3)
    more = {"TASKD_RECOVER_STRATEGY": ALONE, "PACE": "0.1", "SAVE_INTERVAL": "0"}
    with start(lab, tmp_path / "job", DIES_GROWING="1", **more) as job:
        until(job, "no step is done", lambda: min(steps(job, r) for r in range(4)) >= 10)
        between_two_steps(job)
        assert lab.signal(1, signal.SIGKILL)
        until(job, "the job has not shrunk", lambda: len(incidents(job.directory)) == 1)
        job.launch_standby(2)
        until(job, "it has not ended", lambda: job.launchers[0].poll() is not None)
        assert job.launchers[0].poll() == 75
    (folder,) = (job.directory / "out").glob("checkpoint-*")
    step = int(folder.name.partition("-")[2])
    assert step == steps(job, 0) + 1, "the newest, which all had before the ranks came"
