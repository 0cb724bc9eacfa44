"""A script that knows mindio_ttp alone, 2 nodes x 2 ranks: a node is lost, that of the manager and
of MASTER_ADDR too, and a standby takes its place."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
from cluster import Forked
from training import environment

from taskd.adaptor.mindio import alias

SCRIPT = Path(__file__).parents[1] / "mindio" / "scripts" / "pretrain.py"
STEPS, LIMIT = 300, 120.0


def start(hosts, folder, layout="22"):
    """`layout`: model-parallel ranks, and replicas."""
    (folder / "out").mkdir(parents=True)
    alias.install(folder)
    path = f"{folder}:{Path(__file__).parents[2]}"
    script = [str(SCRIPT), *layout, str(STEPS), str(folder / "out")]
    settings = environment(folder, PYTHONPATH=path, SAVE_INTERVAL="5")
    return Forked(hosts, folder, 2, 2, script, settings)


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
