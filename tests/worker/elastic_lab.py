"""One rank in this process, whose job loses ranks: the agent's and the manager's part is played
here, its state page, records and loop are real."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from taskd import devices
from taskd.core.job.snapshots import PASS_END
from taskd.cython_api import slot
from taskd.cython_api.page import Page
from taskd.messages import from_rank, to_rank
from taskd.messages.values import Plan, RankSet
from taskd.records import sealed, store
from taskd.records.store import Entries
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.communication.pipelines import Pipelines
from taskd.worker.discovery.loop_variables import LoopVariables
from taskd.worker.job import Job
from taskd.worker.repair.communicators import Communicators
from taskd.worker.repair.session import RepairSession
from taskd.worker.state import entry as entries
from taskd.worker.state.copies import Copies
from taskd.worker.state.entry import Entry
from taskd.worker.state.gradients import Gradients
from taskd.worker.state.part import Content
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.training_state import TrainingState


class Line:
    """What the agent sends, in order, and what it hears."""

    attended = False

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.said: list[Any] = []
        self.releases = 100

    def receive(self) -> Any:
        """Where a rank waits and no repair comes, all have ended their pass."""
        if not self.orders:
            self.releases -= 1
            assert self.releases, "the rank waits for orders that do not come"
            return to_rank.Release(1 << 40)
        order = self.orders.pop(0)
        if not callable(order):
            return order
        order()
        return self.receive()

    def send(self, message: Any) -> None:
        self.said.append(message)

    def check(self) -> None: ...

    def last(self, kind: type) -> Any:
        return [m for m in self.said if isinstance(m, kind)][-1]


class Alone(Communicators):
    """A job of which this process is the only rank that is left."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(range(1))
        self.rank, self.world_size = rank, world
        self.were_away: list[frozenset[int]] = []

    def rebuild(self, *given: Any, away: frozenset[int] = frozenset(), **more: Any) -> None:
        self.generation, self.away = given[0], away
        self.were_away.append(away)

    @property
    def present(self) -> tuple[int, ...]:
        return (self.rank,)


LABS: list[Lab] = []


class Lab:
    """`rank` of `world`. `job`: as the script has it."""

    def __init__(
        self,
        directory: Path,
        page: Page | None,
        rank: int,
        world: int,
        incarnation: int = 0,
        communicators: Communicators | None = None,
        **objects: Any,
    ) -> None:
        """`page`: None where `communicators` are of a real job: then it is interrupted between two
        steps, by `interrupt`."""
        self.directory, self.page, self.rank = directory, page, rank
        self.store = "here", 1
        self.line = Line()
        agent = AgentClient(rank)
        agent.channel, agent.incarnation = self.line, incarnation  # type: ignore[assignment]
        self.state = TrainingState(objects)
        self.session = RepairSession(
            rank=rank,
            agent=agent,
            communicators=communicators or Alone(rank, world),
            state=self.state,
            stripes=None,
            entries=Entries(directory, rank, rank),
            copies=Copies(directory, 0, incarnation),
            random=RandomState(torch.device("cpu")),
            gradients=Gradients(self.state.optimizers.values()),
            device=devices.of(torch.device("cpu")),
            pipelines=Pipelines(),
            variables=LoopVariables(objects.values(), False),
        )
        self.session.random.watch(self.state.generators.values())
        self.session.built_at = self.session.answered = slot.interruption()
        self.job = Job(self.session)
        assert self.job.loop is not None
        LABS.append(self)
        self.loop = self.job.loop
        if not incarnation and communicators is None:
            self.loop.recorder.formed()

    def seed(self, number: int) -> None:
        """Seed all generators, before the first step."""
        self.session.random.restore(seeded(number))
        self.loop.recorder.formed()

    def entry(self, step: int, rank: int | None = None, name: int | str | None = None) -> Entry:
        """The record of a rank of that step, in the file `name`."""
        rank = self.rank if rank is None else rank
        file = Entries(self.directory, rank if name is None else name, rank)
        found = file.read(step)
        assert found is not None, f"no record of step {step} of rank {rank}"
        return entries.decode(found[1], file.seal, step)

    def leave(self, rank: int, step: int, kind: int, entry: Entry) -> None:
        """What the agent puts there of a rank that is away."""
        file = Entries(self.directory, store.away(rank), rank)
        file.write(step, kind, entries.encode(entry, file.seal, step))

    def orders(self, step: int, stand_ins: dict[int, int], plan: Plan | None = None) -> None:
        """The next repair, which resumes at `step` with these ranks away."""
        number = slot.interruption() + (self.page is not None)
        generation = self.session.communicators.generation + 1
        plan = plan or Plan(step, RankSet.of([self.rank]), RankSet(), (), "as it is")
        self.line.orders += [
            to_rank.Rebuild(
                number, generation, self.store, stand_ins=tuple(sorted(stand_ins.items()))
            ),
            to_rank.Restore(number, generation, plan),
            to_rank.Resume(number, generation, step),
        ]

    def interrupt(self, step: int, stand_ins: dict[int, int]) -> None:
        self.orders(step, stand_ins)
        if self.page is not None:
            self.page.interrupt(slot.interruption() + 1)
        else:
            self.session.built_at = self.session.answered = -1

    def shrink_at_the_start(self, others: dict[int, Callable[[Entry], Entry]]) -> None:
        """Before the first step, the ranks of `others` are away; their records are made of ours."""
        own = self.entry(0)
        for rank, made in others.items():
            self.leave(rank, 0, PASS_END, made(own))
        self.interrupt(0, dict.fromkeys(others, self.rank))

    def failures(self) -> list[str]:
        return [m.reason for m in self.line.said if isinstance(m, from_rank.RankFailed)]


def seeded(seed: int) -> bytes:
    """The generators' states after seeding them all; this process's stay as they are."""
    watched = RandomState(torch.device("cpu"))
    before = watched.snapshot()
    torch.manual_seed(seed)
    random.seed(seed)
    found = watched.snapshot()
    watched.restore(before)
    return found


def with_seed(seed: int, **more: Any) -> Callable[[Entry], Entry]:
    return lambda own: replace(own, parts={**own.parts, "random": Content(seeded(seed))}, **more)


@contextmanager
def alone(directory: Path) -> Iterator[Page]:
    """A page, a directory of records, and a group of one rank."""
    os.mkfifo(directory / store.NOTES)
    sealed.write_key(directory, b"k" * sealed.KEY_BYTES, "a-job")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with Page.create(directory / "page", 1) as page:
            slot.attach(page.path, 0)
            try:
                yield page
            finally:
                while LABS:  # each watches to the end of its process
                    lab = LABS.pop()
                    lab.loop.attempts.watch.remove()
                    lab.session.standing.remove()
                slot.detach()
    finally:
        dist.destroy_process_group()


HOOKS: dict[int, Callable[[], Any]] = {}
FOUND: list[Any] = []


def reached(step: int) -> None:
    """Call what a test has put into HOOKS, once. What it returns is in FOUND: neither is a variable
    of the test's loop, which each rank would have for itself."""
    if step in HOOKS:
        FOUND.append(HOOKS.pop(step)())
