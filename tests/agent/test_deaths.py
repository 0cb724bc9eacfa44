"""What a dead rank has left is read before its death is told."""

from __future__ import annotations

import subprocess
import threading
from types import SimpleNamespace

import pytest

from taskd.agent.ranks.deaths import Deaths
from taskd.agent.ranks.processes import Forked
from taskd.core.job.snapshots import FINAL, LARGE
from taskd.messages import from_agent
from taskd.records import store
from tests.agent.node import PATIENCE, until


@pytest.fixture
def node(nodes):
    """One whose agent's thread is this one: what it is given to do is in `calls`."""
    own = nodes(0)
    own.told, own.calls = [], []
    agent = SimpleNamespace(
        epoch=own.epoch,
        preparing=False,
        news=threading.Event(),
        call=own.calls.append,
        report=own.told.append,
    )
    own.epoch.protected = True
    own.deaths = Deaths(
        agent,
        SimpleNamespace(begin_to_end=lambda *of: None),
        SimpleNamespace(),
        SimpleNamespace(died=lambda rank: None),
        lambda rank: None,
    )
    return own


def died(node):
    return [message for message in node.told if isinstance(message, from_agent.RankDied)]


def test_small_records_are_read_at_once(node):
    node.write(0, 7, FINAL, b"seven")
    node.deaths.ended(node.epoch, node.epoch.ranks[0], -9)
    (told,) = died(node)
    assert told.position is not None and told.position.step == 7 and not node.calls


def test_the_agent_does_other_things_while_large_ones_are_read(node, monkeypatch):
    """It was cut off from its manager for as long as it read: 0.4 s for a GiB, and each rank's."""
    rank, may = node.epoch.ranks[0], threading.Event()
    node.write(0, 7, FINAL, b"7" * (LARGE + 1))
    read = store.left_behind

    def slowly(*of):
        assert of[1] == 1 or may.wait(PATIENCE)
        return read(*of)

    monkeypatch.setattr(store, "left_behind", slowly)
    node.deaths.ended(node.epoch, rank, -9)
    node.deaths.ended(node.epoch, rank, -9)  # its pidfd, after the thread that watches it
    assert not node.told and rank.over is None and rank.reading == rank.incarnation
    # another one is told meanwhile
    node.deaths.ended(node.epoch, node.epoch.ranks[1], -9)
    assert [told.rank for told in died(node)] == [1]
    may.set()
    until(lambda: node.calls)
    (then,) = node.calls
    then()
    told = died(node)[-1]
    assert (told.rank, told.position.step) == (0, 7) and rank.over is not None
    node.deaths.ended(node.epoch, rank, -9)
    assert len(died(node)) == 2


def test_of_one_that_the_zygote_has_reaped_the_zygote_tells_the_status(node):
    """It was called "ended, cause unknown" where its report came a moment later."""
    process = subprocess.Popen(["true"])
    process.wait()
    rank = node.epoch.ranks[0]
    rank.process = Forked(process.pid)
    node.deaths.replacements.reports_end_of = lambda known: known is rank.process
    node.deaths.ended(node.epoch, rank, None, certain=True)
    assert rank.over is None and not node.told
    node.deaths.ended(node.epoch, rank, -9)
    assert died(node)[0].cause.startswith("killed by SIGKILL")


def test_what_was_read_of_a_process_is_not_its_successors(node, monkeypatch):
    rank = node.epoch.ranks[0]
    node.write(0, 7, FINAL, b"7" * (LARGE + 1))
    node.deaths.ended(node.epoch, rank, -9)
    rank.incarnation += 1  # the manager has had it replaced meanwhile
    until(lambda: node.calls)
    node.calls.pop()()
    assert not node.told and rank.over is None and rank.left is None
