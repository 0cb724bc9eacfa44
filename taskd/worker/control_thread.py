"""A thread that answers the agent while the rank trains: progress probes, fault injection,
profiling.

It waits on its own connection to the agent. In a forked rank, which the kernel does not kill
together with the launcher, it also waits for the launcher's end. If the interpreter cannot run it
(a loop in C that holds the GIL, a stopped process), it does not answer, which is information too.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
import time

from taskd import settings
from taskd.messages import from_rank, to_rank
from taskd.profiling.rank import Profile
from taskd.worker import injection
from taskd.worker.communication.channel import AgentGone, Channel
from taskd.worker.job import Job
from taskd.worker.process import belonging

NOT_ALLOWED = "this rank accepts no test faults: TASKD_FAULT_INJECTION is not on in its environment"

log = logging.getLogger("taskd.worker")


def start(agent: str, rank: int, incarnation: int, job: Job) -> None:
    """Connect to the agent named `agent` and attend to it for as long as the process lives."""
    channel = Channel(agent)
    channel.send(from_rank.ControlHello(rank, incarnation))
    threading.Thread(
        target=_attend,
        args=(channel, rank, incarnation, job),
        name="taskd-control_thread",
        daemon=True,
    ).start()


def _attend(channel: Channel, rank: int, incarnation: int, job: Job) -> None:
    training = job.loop.session.channel if job.loop is not None else None
    if training is not None:
        training.attended = True
    try:
        _answer(channel, rank, incarnation, job)
    finally:
        # the agent has ended: from here on the training thread checks for itself, and leaves
        if training is not None:
            training.attended = False


def _answer(channel: Channel, rank: int, incarnation: int, job: Job) -> None:
    while True:
        try:
            belonging.outlive_nobody(channel)
            order = channel.receive()
            if isinstance(order, to_rank.ProbeProgress):
                channel.send(
                    from_rank.Progress(
                        rank,
                        incarnation,
                        order.call,
                        job.position,
                        job.collectives(),
                        time.process_time(),
                    )
                )
            elif isinstance(order, to_rank.Inject):
                # the manager has checked this too; a rank does not rely on another process for it
                allowed = settings.fault_injection(os.environ)
                ok, text = (
                    injection.carry_out(job, order.what, order.options)
                    if allowed
                    else (False, NOT_ALLOWED)
                )
                log.warning("injected fault (%s %s): %s", order.what, order.options, text)
                channel.send(from_rank.Injected(order.request, rank, ok, text))
            elif isinstance(order, to_rank.Profile):
                _profile(channel, rank, incarnation, job, order.ranges)
        except AgentGone:
            return
        except Exception:
            log.exception("the control thread continues after an error")


def _profile(
    channel: Channel, rank: int, incarnation: int, job: Job, ranges: tuple[int, ...]
) -> None:
    """Have the training thread switch its profile, when it begins the next attempt."""
    if job.loop is None:
        return
    attempts, session = job.loop.attempts, job.loop.session
    if attempts.profile is None:

        def told(step: int, steps: int, taken: float, waited: float) -> None:
            # of the profile's own thread; whole messages do not mix
            with contextlib.suppress(AgentGone):
                report = from_rank.StepTimes(rank, incarnation, step, steps, taken, waited)
                channel.send(report)

        state = session.state
        wrapped = {id(ddp.module) for ddp in state.ddps}
        roots = [*state.ddps, *(m for m in state.modules.values() if id(m) not in wrapped)]
        attempts.profile = Profile(rank, roots, session.device.mark, told)
    attempts.begun.add(functools.partial(attempts.profile.switch, ranges))
