"""A thread that answers the agent while the rank trains: progress probes, fault injection,
profiling, dumps.

It waits on its own connection to the agent. In a forked rank, which the kernel does not kill
together with the launcher, it also waits for the launcher's end. If the interpreter cannot run it
(a loop in C that holds the GIL, a stopped process), it does not answer, which tells the agent
something too. Imports neither torch nor mindspore.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from taskd.messages import from_rank, to_rank
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.communication.channel import AgentGone
from taskd.worker.process import belonging

log = logging.getLogger("taskd.worker")


@dataclass(frozen=True)
class Answers:
    """The answers that depend on how a rank trains. `progress`: its step, and its progress in it;
    `inject`: injects a fault, returns whether it was done and a description; `profile`: makes the
    training thread profile ranges of steps, and report to the agent; `save`: begins to write the
    copy of the state."""

    progress: Callable[[], tuple[int, int]]
    inject: Callable[[str, dict[str, str]], tuple[bool, str]]
    profile: Callable[[tuple[int, ...], AgentClient], None] = lambda ranges, agent: None
    save: Callable[[to_rank.SaveState], None] = lambda order: None


def start(agent: AgentClient, answers: Answers) -> None:
    """Answer the agent for as long as the process lives. Raises OSError."""
    beside = agent.beside()
    threading.Thread(
        target=_attend, args=(agent, beside, answers), name="taskd-control_thread", daemon=True
    ).start()


def _attend(agent: AgentClient, beside: AgentClient, answers: Answers) -> None:
    agent.channel.attended = True
    try:
        _answer(beside, answers)
    finally:
        # the agent has ended: from here on the training thread checks for itself, and leaves
        agent.channel.attended = False


def _answer(agent: AgentClient, answers: Answers) -> None:
    while True:
        try:
            belonging.outlive_nobody(agent.channel)
            order = agent.channel.receive()
            if isinstance(order, to_rank.ProbeProgress):
                step, collectives = answers.progress()
                used = time.process_time()
                agent.report(from_rank.Progress, order.call, step, collectives, used)
            elif isinstance(order, to_rank.Inject):
                ok, text = answers.inject(order.what, order.options)
                agent.channel.send(from_rank.Injected(order.request, agent.rank, ok, text))
            elif isinstance(order, to_rank.Profile):
                answers.profile(order.ranges, agent)
            elif isinstance(order, to_rank.SaveState):
                answers.save(order)
        except AgentGone:
            return
        except Exception:
            log.exception("the control thread continues after an error")
