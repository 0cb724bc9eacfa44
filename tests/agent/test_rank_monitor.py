"""Where a node's ranks are, as its agent reads it from their page; what a process has had of the
processors, and what it has waited for."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd.agent.ranks.beats import node_progress
from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.ranks.rank_monitor import spent
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages import codec, from_agent
from taskd.messages.node_progress import GONE, PHASES, STOPPED

# a rank that has begun step 5, took its time for it, and ends
ATTACHED = """
import sys
from taskd.cython_api import slot
slot.attach(sys.argv[1], int(sys.argv[2]))
for step in range(4):
    slot.progress(step, slot.COMPUTING)
    slot.progress(step, slot.COMMITTED)
slot.progress(5, slot.FETCHING)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def epoch(tmp_path):
    page = Page.create(tmp_path / "page", 3)
    ranks = {i: Rank(10 + i, i, SimpleNamespace(pid=0), None, -1) for i in range(3)}
    yield Epoch(1, Path(tmp_path), page, ranks=ranks)
    page.close()


def test_the_phases_of_the_message_are_those_of_the_page():
    assert (*slot.PHASES, "gone", "stopped") == PHASES


def test_ranks_that_have_not_come_yet(epoch):
    said = node_progress(epoch, (), time.monotonic())
    assert (said.steps, said.usual, said.total) == ((0, 0, 0), (0, 0, 0), 0)
    assert list(said.phases) == [slot.SETUP] * 3


MARKED = """
import sys
from taskd.cython_api import slot

slot.attach(sys.argv[1], int(sys.argv[2]))
step, generation, *counts = map(int, sys.argv[3:])
slot.marked(step, generation, counts)
print("there", flush=True)
sys.stdin.read()
"""


def test_counts_for_other_nodes_are_those_of_the_newest_step(epoch):
    """Of each group, those of one rank: the ranks of a node compare theirs themselves."""
    large = (1 << 62) - 1
    given = ((64, 1, 5, 30, large, 7), (64, 1, large, 7), (32, 1, 9, 9))
    ranks = []
    try:
        assert node_progress(epoch, (), time.monotonic()).counts == ()
        for local, values in enumerate(given):
            command = [sys.executable, "-c", MARKED, epoch.page.path, str(local)]
            command += [str(value) for value in values]
            ranks.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            assert ranks[-1].stdout.readline() == "there\n"
        assert epoch.page.marks(0) == ((1, 64), [5, 30, large, 7])
        said = node_progress(epoch, (), time.monotonic())
        assert (said.counted, said.counts) == ((1, 64), (5, 30, 10, large, 7, 10))
        sent = from_agent.Heartbeat(3, progress=said)
        assert codec.FROM_AGENT.decode(codec.encode(sent)) == sent
        epoch.ranks[0].away = True
        assert node_progress(epoch, (), time.monotonic()).counts == (large, 7, 11)
    finally:
        for rank in ranks:
            rank.communicate("")


def test_a_rank_in_its_loop_one_that_is_gone_and_one_that_has_ended_well(epoch):
    command = [sys.executable, "-c", ATTACHED, epoch.page.path, "1"]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert rank.stdout.readline() == "there\n"
        epoch.ranks[1].total = 30
        epoch.ranks[0].over = "killed by SIGKILL"
        epoch.ranks[2].over, epoch.ranks[2].step = "ended well", 30
        said = node_progress(epoch, (), time.monotonic())
        assert said.steps == (0, 5, 30) and said.total == 30 and 0 <= said.age < 60
        assert said.pids == (0, rank.pid, 0) and said.incarnations == (0, 0, 0)
        # the job has shrunk: its step is that of the ranks that are there
        assert said.age == 0
        epoch.ranks[0].away = epoch.ranks[2].away = True
        assert node_progress(epoch, (), time.monotonic() + 100).age > 100
        assert list(said.phases) == [GONE, slot.FETCHING, slot.DONE]
        stopped = node_progress(epoch, {1}, time.monotonic())
        assert list(stopped.phases) == [GONE, STOPPED, slot.DONE]
        # its replacement has not attached yet: the page still has the predecessor's phase
        epoch.ranks[1].incarnation = 1
        assert node_progress(epoch, (), time.monotonic()).phases[1] == slot.SETUP
    finally:
        rank.communicate("")


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
    before = spent(idle.pid)[0]
    assert spent(busy.pid)[0] >= 0.2
    assert spent(parent.pid)[0] >= 0.2  # what it has started counts
    assert spent(idle.pid)[0] == before


def test_of_a_process_that_is_gone_nothing_is_known(child):
    process = child("true")
    process.wait()
    assert spent(process.pid) == (0.0, 0.0)
    assert spent(0) == (0.0, 0.0)
