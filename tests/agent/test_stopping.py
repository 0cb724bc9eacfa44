"""A replacement that starts while the launcher or the agent stops processes ends with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from taskd.agent.agent import Agent
from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.ranks.processes import Forked, Handler, Ordered
from taskd.agent.ranks.watchdog import HangLimits
from taskd.cython_api.page import Page
from taskd.protocol import keys


@pytest.fixture
def agent(tmp_path):
    made = Agent(keys.derive(b"tests"), "job", 0.0, HangLimits(least=None), unprotected=False)
    page = Page.create(str(tmp_path / "page"), 1)
    made.epoch = Epoch(0, tmp_path, page)
    made.epoch.ranks[0] = Rank(0, 0, None, None, os.open(os.devnull, os.O_RDONLY))
    made.epoch.ranks[0].incarnation = 1
    made.context = SimpleNamespace(subprocess_handlers={0: "torch's own"})
    yield made
    made.connections.listener.close()
    page.close()


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as made:
        yield made
        made.kill()


def started(agent, process):
    order = SimpleNamespace(
        rank=0, incarnation=1, environment={"TASKD_SHARED_DIR": str(agent.epoch.directory)}
    )
    agent.processes.started(order, process)


@pytest.mark.parametrize("there", ["torch's own", Handler(Forked(1), 0)], ids=["first", "second"])
def test_it_is_ended_if_the_launcher_has_ended_what_was_there(agent, process, there):
    """It waits for the processes that it finds then, without a limit."""
    agent.context.subprocess_handlers[0] = there
    put = agent.unless_stopping

    def late(epoch, action):
        agent.stopping()  # the launcher's thread
        return put(epoch, action)

    agent.unless_stopping = late
    rank = agent.epoch.ranks[0]
    started(agent, process)
    assert process.wait(20.0) == -signal.SIGKILL
    assert agent.context.subprocess_handlers[0] is there and rank.process is None


def test_else_the_launcher_finds_it(agent, process):
    started(agent, process)
    assert agent.context.subprocess_handlers[0].proc is process and process.poll() is None
    assert agent.epoch.ranks[0].process is process
    agent.epoch.ranks[0].forget_process()


def test_a_process_that_has_no_group_yet_is_signaled(agent, process):
    """As one that the zygote has just forked."""
    Handler(process, 0).close(signal.SIGTERM)
    assert process.wait(20.0) == -signal.SIGTERM


def test_a_process_that_has_no_group_yet_is_killed(agent, process):
    rank = agent.epoch.ranks[0]
    rank.process = process
    agent.processes.end(agent.epoch, rank, incarnation=1)
    assert process.wait(20.0) == -signal.SIGKILL


def test_a_placeholder_is_ended():
    handler = Handler(Ordered(), 0)
    handler.close(signal.SIGTERM)
    assert handler.proc.wait(0.0) == -signal.SIGTERM
