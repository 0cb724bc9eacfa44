"""A job that listens on the ports that a network policy names, and on no others."""

from __future__ import annotations

import itertools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import training

EXAMPLE = Path(__file__).parents[2] / "examples" / "pytorch" / "train.py"


def listening(process):
    """Ports of the process and its descendants, by pid."""
    found = {}
    for each in (process, *process.children(recursive=True)):
        try:
            connections = each.net_connections("tcp")
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
        found[each.pid] = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
    return found


@pytest.mark.long
def test_all_sockets_that_listen_are_in_the_range(tmp_path):
    lowest = random.randrange(20000, 30000, 100)
    ports = set(range(lowest, lowest + 100))
    env = training.environment(tmp_path, TASKD_PORT_RANGE=f"{lowest}-{lowest + 99}")
    master = training.free_port()
    command = [str(training.BIN / "taskd"), "run", "--nproc_per_node", "2"]
    command += ["--master_port", str(master), str(EXAMPLE), "1000000"]
    launcher = subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    process, losses = psutil.Process(launcher.pid), tmp_path / "losses"

    def trains(beyond):
        end = time.monotonic() + training.LIMIT
        while not losses.exists() or losses.read_text().count("\n") < beyond:
            assert launcher.poll() is None and time.monotonic() < end
            time.sleep(0.05)

    try:
        trains(20)
        for kills in itertools.count():
            found = listening(process)
            ranks = [p.pid for p in process.children(recursive=True) if str(EXAMPLE) in p.cmdline()]
            assert len(ranks) == 2 and all(found[pid] for pid in ranks)
            others = set().union(*found.values()) - ports
            assert others <= {master, int(env["TASKD_PORT"])}
            if kills == 2:
                break
            os.kill(max(ranks), signal.SIGKILL)
            trains(losses.read_text().count("\n") + 50)
    finally:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(training.LIMIT)
