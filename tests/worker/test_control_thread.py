"""What a rank's second connection takes: injected faults only where the rank's own environment says
so."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from taskd.messages import to_rank
from taskd.worker import control_thread, injection
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.communication.channel import AgentGone
from taskd.worker.control_thread import Answers


class Line:
    """An agent that says one thing and is gone."""

    def __init__(self, order) -> None:
        self.orders, self.heard = [order], []

    def receive(self):
        if not self.orders:
            raise AgentGone
        return self.orders.pop()

    def send(self, message) -> None:
        self.heard.append(message)


@pytest.mark.parametrize(("value", "allowed"), [(None, False), ("off", False), ("on", True)])
def test_a_fault_on_purpose(monkeypatch, value, allowed):
    monkeypatch.delenv("TASKD_FAULT_INJECTION", raising=False)
    if value is not None:
        monkeypatch.setenv("TASKD_FAULT_INJECTION", value)
    done = []
    monkeypatch.setattr(injection, "_memory", lambda *given: done.append(given) or "done")
    agent = AgentClient(3)
    agent.channel = Line(to_rank.Inject("r", 3, "memory", {"where": "heap"}))
    answers = Answers(progress=lambda: (0, 0), inject=partial(injection.carry_out, None))
    control_thread._answer(agent, answers)
    (answer,) = agent.channel.heard
    assert (answer.request, answer.rank, answer.ok, len(done)) == ("r", 3, allowed, allowed)
    assert allowed or "TASKD_FAULT_INJECTION" in answer.text


def test_the_training_thread_asks_by_itself_once_the_agent_has_ended():
    training = SimpleNamespace(attended=False)
    seen = []

    class Ends(Line):
        def receive(self):
            seen.append(training.attended)
            raise AgentGone

    agent, beside = AgentClient(3), AgentClient(3)
    agent.channel, beside.channel = training, Ends(None)
    control_thread._attend(agent, beside, Answers(lambda: (0, 0), lambda *_: (False, "")))
    assert seen == [True] and training.attended is False


def test_a_launcher_that_has_ended_is_one_line():
    """Of each of its ranks, and no traceback, which would be the script's."""
    program = (
        "from taskd import raised\n"
        "from taskd.worker.communication import channel\n"
        "raised.offer()\n"
        "raise channel.AgentGone('the launcher has ended, and this rank ends with it')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr == "taskd: the launcher has ended, and this rank ends with it\n"
