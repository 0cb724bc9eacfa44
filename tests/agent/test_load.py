"""What a process has had of the processors, and what it has waited for; and what becomes of
orphans."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from taskd.agent.ranks import load, orphans

SPIN = (
    "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end:"
    " pass\nprint(flush=True)\ninput()"
)
SLEEP = "print(flush=True)\ninput()"


@pytest.fixture
def child():
    made = []

    def start(*command, **more):
        made.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, **more)
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.wait()


def test_who_works_and_who_waits(child):
    busy, idle = (child(sys.executable, "-c", text) for text in (SPIN, SLEEP))
    parent = child("sh", "-c", f"{sys.executable} -c '{SPIN}'; true")
    for process in (busy, idle, parent):
        process.stdout.readline()
    before = load.spent(idle.pid)[0]
    assert load.spent(busy.pid)[0] >= 0.2
    assert load.spent(parent.pid)[0] >= 0.2  # what it has started counts
    assert load.spent(idle.pid)[0] == before


def test_of_a_process_that_is_gone_nothing_is_known(child):
    process = child("true")
    process.wait()
    assert load.spent(process.pid) == (0.0, 0.0)
    assert load.spent(0) == (0.0, 0.0)


def test_the_end_of_an_orphan_is_known_and_what_ranks_leave_behind_is_cleared_away():
    text = """
import os, signal, subprocess, sys, time
from taskd.agent.ranks import orphans
orphans.adopt()
command = ["sh", "-c", "sleep 100 & echo $!; exec sleep 100"]
rank = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
left = int(rank.stdout.readline())
rank.kill(); rank.wait()
os.kill(left, signal.SIGTERM)
os.waitid(os.P_PID, left, os.WEXITED | os.WNOWAIT)
print(orphans.code(left))
orphans.reap([rank.pid], [left]); print(os.path.exists(f"/proc/{left}"))
orphans.reap([1], []); print(os.path.exists(f"/proc/{left}"))
orphans.reap([rank.pid], []); print(os.path.exists(f"/proc/{left}"))
"""
    said = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said == [str(-signal.SIGTERM), "True", "True", "False"]


def test_the_end_of_nobody_is_taken_for_a_kill():
    assert orphans.code(os.getpid()) == -signal.SIGKILL
