"""`taskd.protect`: protects what a script trains, or finds the reason why it cannot."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib.util
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from taskd import devices, logs, output_pipes, raised, settings, stacks
from taskd.cython_api import slot, sockets
from taskd.devices import conditions
from taskd.messages import from_rank
from taskd.messages.values import Position
from taskd.profiling.rank import Profile
from taskd.records import dumps
from taskd.records.store import Entries
from taskd.worker import control_thread, injection
from taskd.worker.communication import buckets, comm_hooks, groups
from taskd.worker.communication.abort import Aborter
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.communication.channel import AgentGone
from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.control_thread import Answers
from taskd.worker.discovery import held, holders, unseen, unsupported
from taskd.worker.discovery.loop_variables import LoopVariables
from taskd.worker.discovery.reached import Reached
from taskd.worker.job import Job
from taskd.worker.process import belonging, gloo_threads, replacement
from taskd.worker.repair import choosing
from taskd.worker.repair.communicators import Communicators
from taskd.worker.repair.outcomes import LeftAlone
from taskd.worker.repair.session import RepairSession
from taskd.worker.set_up import functions as set_up
from taskd.worker.set_up import imports
from taskd.worker.set_up.interception import suspended
from taskd.worker.state import accelerator, replicas
from taskd.worker.state.copies import Copies
from taskd.worker.state.given import (
    NotProtectable,
    UnsupportedState,
    expanded,
    named,
    unwanted,
)
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.memory import scratch
from taskd.worker.state.publisher import Publisher
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.stripes import Stripes
from taskd.worker.state.training_state import TrainingState
from taskd.worker.training import memory
from taskd.worker.training.loop import Loop

log = logging.getLogger("taskd.worker")


ALONE = (
    "this job is not protected: its ranks were started by something else than `taskd run`, torchrun"
    " with taskd in it, or msrun"
)


def protect(
    objects: dict[str, Any],
    unnamed: Sequence[Any] = (),
    variables: Sequence[Mapping[str, Any]] = (),
) -> Job:
    """See `taskd.protect`. `variables`: the caller's, which name what is `unnamed`."""
    set_up.check()
    with suspended():
        return _protect(expanded(named(unnamed, variables, objects)))


def _say(kind: str) -> None:
    """What the device's settings make of the promise, once a job."""
    for text in conditions.hazards(kind):
        log.warning("%s", text)
    if missing := conditions.inexact(kind):
        log.info(
            "a repeated step may differ from its first try by rounding, as %s computes; for equal"
            " bits: %s",
            kind,
            ", ".join(missing),
        )


def _protect(objects: dict[str, Any]) -> Job:
    supervised = "TASKD_AGENT" in os.environ
    state, obstacle, found = None, None, unseen.Found()
    if supervised:
        found = unseen.find(objects, everything=not replacement.active())
    try:
        # report what cannot be protected in every run, not only under a manager
        state = TrainingState({**objects, **found.objects})
        obstacle = _unrecordable(state)
    except NotProtectable as error:
        obstacle = str(error)
    if not supervised:
        if dist.is_initialized() and dist.get_world_size() > 1 and dist.get_rank() == 0:
            log.warning("%s", ALONE)
        return Job(None)
    logs.setup(f"worker-{os.environ['RANK']}")
    for name, value in [*found.objects.items(), *found.generators.items()]:
        log.info("also protected: %s (%s)", name, type(value).__name__)
    if state is not None:
        obstacle = obstacle or found.obstacle or _obstacle(state)
    if obstacle is not None and (refusal := unwanted(obstacle)) is not None:
        raise refusal
    belonging.attach()
    agent = AgentClient(int(os.environ["RANK"]))
    place = _device(state) if state is not None else torch.device("cpu")
    agent.connect("" if place.type == "cpu" else str(place))
    if obstacle is not None or state is None:
        log.warning("this job is not protected: %s", obstacle)
        atexit.register(lambda: slot.progress(0, slot.DONE))
        agent.channel.close()
        return Job(None)
    accelerator.synchronize(state.generators.values(), replacement.active())
    local_rank = int(os.environ["TASKD_LOCAL_RANK"])
    local_size, first = int(os.environ["LOCAL_WORLD_SIZE"]), agent.rank - local_rank
    node = range(first, first + local_size)
    verifies = settings.verify(os.environ)
    communicators, pipelines = Communicators(node, verifies), Pipelines()
    communicators.counts.watch()
    for name, hook in comm_hooks.states(state.ddps).items():
        state.add(name, hook)
    numbers = holders.Numbers()
    numbers.search(
        [*state.modules.values(), *state.ddps, *state.optimizers.values()], found.libraries
    )
    if numbers:
        state.add(holders.NAME, numbers)
    known = [*objects.values(), *found.objects.values(), *found.generators.values()]
    protected = state.modules, state.optimizers, state.small, known, state.ddps
    variables = LoopVariables(known, settings.refuses_carried(os.environ))
    script = Reached(state, partial(held.find, *protected), [*known, *state.ddps], variables)
    script.begin()
    if pipelines:
        state.add("(pipeline schedules)", pipelines)
    shared = Path(os.environ["TASKD_SHARED_DIR"])
    device = devices.of(place)
    if agent.rank == 0:
        _say(device.device.type)
    session = RepairSession(
        rank=agent.rank,
        agent=agent,
        communicators=communicators,
        state=state,
        stripes=(
            Stripes(shared, local_rank, local_size, Publisher(device) if device.runs_late else None)
            if settings.stripes(os.environ)
            else None
        ),
        entries=Entries(shared, local_rank, agent.rank),
        copies=Copies(shared, local_rank, agent.incarnation),
        random=RandomState(device.device),
        gradients=Gradients(state.optimizers.values()),
        device=device,
        pipelines=pipelines,
        variables=variables,
        script=script,
        node=first,
        verifies=verifies,
    )
    session.random.watch([*state.generators.values(), *found.generators.values()])
    sockets.limit(round((settings.link_limit(os.environ) or 0.0) * 1000))
    job = Job(session)
    stacks.offer(shared, local_rank)
    answers = Answers(
        progress=lambda: (job.position, job.collectives()),
        inject=partial(injection.carry_out, job),
        profile=partial(_profile, job),
        save=session.beside.write,
    )
    control_thread.start(agent, answers)
    output_pipes.watch(log)
    if session.device.needs_abort:
        session.aborter = Aborter(session.device)
    # an interpreter that exits normally writes DONE, and only then does the agent wait for its exit
    # code. Not after leaving in the middle of a step: the other ranks wait for it, whatever its
    # exit code
    atexit.register(_leave, job)
    atexit.register(session.beside.finish)
    atexit.register(gloo_threads.settle, communicators.idle)
    assert job.loop is not None
    imports.save()
    if agent.incarnation:
        _survive_signals()
        _return(job.loop)
    else:
        _join(job, job.loop)
    return job


def _survive_signals() -> None:
    """From now on the signal that asks the job to leave is reported, and ends no rank."""
    number = settings.preemption_signal(os.environ)
    if number is not None:
        slot.leave_on(number)


def _profile(job: Job, ranges: tuple[int, ...], agent: AgentClient) -> None:
    """Switch the profile when the next attempt begins. From the control thread; `agent`: whom the
    profile tells."""
    if job.loop is None:
        return
    attempts, session = job.loop.attempts, job.loop.session
    if attempts.profile is None:

        def report(step: int, steps: int, taken: float, waited: float) -> None:
            with contextlib.suppress(AgentGone):  # in the profile's own thread
                agent.report(from_rank.StepTimes, step, steps, taken, waited)

        attempts.profile = Profile(agent.rank, session.state.roots(), session.device.mark, report)
    attempts.begun.add(partial(attempts.profile.switch, ranges))


def _leave(job: Job) -> None:
    """The interpreter ends."""
    if job.abandoned:
        return
    why = job.loop.rejoin.missed() if job.loop is not None else ""
    if why and not raised.is_left():
        # the other ranks wait for a step that this process will not take
        log.error("%s", why)
        print(why, file=sys.stderr, flush=True)
        raised.leave(why)
        os._exit(1)
    # one that trained on without protection is like one that never had any
    left = job.loop is not None and job.loop.cursor.left
    slot.progress(job.position if job.loop is not None else 0, slot.QUIT if left else slot.DONE)


def _join(job: Job, loop: Loop) -> None:
    """Start a rank's first process: wait for the other ranks and train under taskd's
    communicators."""
    session = loop.session
    belonging.dies_with_launcher()
    found = choosing.find(session.state, session.rank, session.communicators.world_size)
    session.agent.report(from_rank.RankJoined, dumps=tuple(found))
    outcome = session.wait_for_orders(
        lambda: (Position(0, None), ""), loop, on_formed=lambda name: _formed(loop, found.get(name))
    )
    if isinstance(outcome, LeftAlone):
        job.leave_alone(outcome.reason)
        return
    _survive_signals()
    loop.recorder.note_memory(loop.attempts.step)
    set_up.settle(memory.tensors(session))


def _formed(loop: Loop, found: dumps.Found | None) -> None:
    """Find what differs between ranks, and record the initial state (that of the dump, if one was
    `found`)."""
    session = loop.session
    with scratch():
        for ddp in session.state.ddps:
            buckets.rebuild(ddp, None)
    loaded, load = None, None
    if found is not None:
        from taskd.worker.repair import dumping

        load = partial(dumping.load, session.state, found, session.rank)
        loaded = load()
    _compare(session)
    if found is not None and loaded is not None:
        kind, entry, several = loaded
        entry = dumping.compared(session.state, found.step, entry) if several else entry
        loop.begin_at(found.step, kind, entry, None if several else load)
        log.info("rank %d begins at step %d of %s", session.rank, found.step, found.path)
        return
    loop.recorder.formed()


def _compare(session: RepairSession) -> None:
    """Find what differs between ranks."""
    state = session.state
    difference = (
        replicas.Difference(list(range(len(state.replicated))), replicas.Replicas())
        if comm_hooks.diverging(state.ddps)
        else replicas.compare(state, session.rank, session.node, session.communicators.present)
    )
    if difference is not None:
        log.info("rank %d: %s", session.rank, difference.says(len(state.replicated)))
        state.set_apart(difference.apart, difference.replicas)


def _return(loop: Loop) -> None:
    """Start a replacement: it rejoins here if its predecessor had not begun a loop, otherwise when
    its loop reaches that pass."""
    loop.rejoin.aim()
    if loop.rejoin.target < 0 and loop.come_back() is not None:
        loop.rejoin.done()
        set_up.again()


def _unrecordable(state: TrainingState) -> str | None:
    """What of it cannot be recorded, or None."""
    try:
        state.parts.take(), state.structure()
    except UnsupportedState as error:
        return str(error)
    return None


def _obstacle(state: TrainingState) -> str | None:
    """Why this job cannot be protected, or None."""
    if importlib.util.find_spec("numpy") is None:  # torch exposes tensors' memory only with it
        return "numpy is not installed: pip install numpy"
    wrapped = {id(p) for m in state.modules.values() for p in m.parameters()}
    for found in gc.get_objects():
        # a script may protect the bare module and train its DDP, which holds the process group.
        # type(), not isinstance(): the latter reads a proxy's __class__, which wakes it
        if (
            issubclass(type(found), DistributedDataParallel)
            and not any(found is d for d in state.ddps)
            and any(id(p) in wrapped for p in found.parameters())
        ):
            state.ddps.append(found)
    for ddp in state.ddps:
        if (reason := buckets.unsupported(ddp)) is not None:
            return reason
    if (reason := unsupported.reason(state.modules.values())) is not None:
        return reason
    if not dist.is_initialized():
        raise UnsupportedState(
            "torch.distributed is not initialized: call init_process_group() before taskd.protect()"
        )
    places = {str(row.device) for row in (*state.replicated, *state.private)} - {"cpu"}
    if len(places) > 1:
        return (
            f"a rank has protected tensors on several devices ({', '.join(sorted(places))}), of"
            " which taskd would wait for one only: give each device a rank of its own"
        )
    return groups.obstacle(_device(state).type)


def _device(state: TrainingState) -> torch.device:
    return next(
        (p.device for m in state.modules.values() for p in m.parameters()), torch.device("cpu")
    )
