"""Where a node's ranks are, as its agent reads it from their page."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.ranks.node_progress import node_progress
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages.from_agent import GONE, PHASES

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
    assert (*slot.PHASES, "gone") == PHASES


def test_ranks_that_have_not_come_yet(epoch):
    said = node_progress(epoch)
    assert (said.steps, said.usual, said.total) == ((0, 0, 0), (0, 0, 0), 0)
    assert list(said.phases) == [slot.SETUP] * 3


def test_a_rank_in_its_loop_one_that_is_gone_and_one_that_has_ended_well(epoch):
    command = [sys.executable, "-c", ATTACHED, epoch.page.path, "1"]
    rank = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert rank.stdout.readline() == "there\n"
        epoch.ranks[1].total = 30
        epoch.ranks[0].over = "killed by SIGKILL"
        epoch.ranks[2].over, epoch.ranks[2].step = "ended well", 30
        said = node_progress(epoch)
        assert said.steps == (0, 5, 30) and said.total == 30
        assert list(said.phases) == [GONE, slot.FETCHING, slot.DONE]
        # its replacement has not attached yet: the page still has the predecessor's phase
        epoch.ranks[1].incarnation = 1
        assert node_progress(epoch).phases[1] == slot.SETUP
    finally:
        rank.communicate("")
