"""A rank that computes the shares of ranks that are away: bit for bit what a loop over the shares,
written by hand, gives."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

from taskd.worker.job import Job
from taskd.worker.state.random_state import RandomState
from taskd.worker.state.replicas import Replicas
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab, seeded, with_seed
from tests.worker.elastic_scripts import KINDS, Script, net

SEEDS = {0: 50, 1: 51, 2: 52}
STEPS, SHARED = 6, 12


@pytest.fixture
def page(tmp_path):
    with elastic_lab.alone(tmp_path) as page:
        yield page


def samples(step: int, place: int) -> torch.Tensor:
    return torch.randn(5, 4, generator=torch.Generator().manual_seed(100 * step + place + 100))


class Reference:
    """The shares of ranks 0, 1 and 2, written by hand."""

    def __init__(self, model: DDP) -> None:
        self.model, self.random = model, RandomState(torch.device("cpu"))
        self.states = {place: seeded(seed) for place, seed in SEEDS.items()}
        self.buffers = {place: [b.clone() for b in model.module.buffers()] for place in SEEDS}

    def shares(self, step: int):
        """(data rank, the context of its backward)."""
        for place in SEEDS:
            self.put(place)
            if place != max(SEEDS):
                with self.model.no_sync():
                    yield place
            else:
                yield place
            self.states[place] = self.random.snapshot()
            self.buffers[place] = [b.clone() for b in self.model.module.buffers()]
        self.put(0)

    def put(self, place: int) -> None:
        self.random.restore(self.states[place])
        for buffer, value in zip(self.model.module.buffers(), self.buffers[place], strict=True):
            buffer.copy_(value)

    def keep(self) -> None:
        """What was drawn after an update, see Script.update, is drawn by all."""
        self.states[0] = self.random.snapshot()
        for place in (1, 2):
            self.random.restore(self.states[place])
            torch.rand(3)
            self.states[place] = self.random.snapshot()
        self.random.restore(self.states[0])


def values(model: DDP, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = [v for s in optimizer.state.values() for v in s.values()]
    return [t.detach().clone() for t in (*model.module.state_dict().values(), *state)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    assert len(one) == len(other)
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def at_seed() -> None:
    torch.manual_seed(SEEDS[0])
    random.seed(SEEDS[0])


class Notes:
    """What a loop notes for the test: a list would be one of its variables, which a repair sets
    back."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_text("")

    def __call__(self, *values: object) -> None:
        with self.path.open("a") as file:
            print(*values, file=file)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()


def test_shares_by_hand(tmp_path: Path, page):
    model, optimizer = net()
    wanted, drawn = Reference(model), Notes(tmp_path / "wanted")
    for step in range(STEPS):
        optimizer.zero_grad()
        for place in wanted.shares(step):
            model(samples(step, place)).square().mean().backward()
            drawn(step, place, random.random(), torch.rand(1).item())
        optimizer.step()
    expected = values(model, optimizer)

    model, optimizer = net()
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, model=model, optimizer=optimizer)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    got = Notes(tmp_path / "got")
    for attempt in lab.job.steps(STEPS + 1):
        with attempt as step:
            if step == STEPS:
                break
            optimizer.zero_grad()
            for place in lab.job.shares(step):
                model(samples(step, place)).square().mean().backward()
                got(step, place, random.random(), torch.rand(1).item())
            optimizer.step()
    assert not lab.failures()
    assert got.lines() == drawn.lines()
    assert same(values(model, optimizer), expected)


def all_shares() -> list[torch.Tensor]:
    """What a step of all shares, with nothing else in it, makes of the model."""
    model, optimizer = net()
    wanted = Reference(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        for place in wanted.shares(step):
            model(samples(step, place)).square().mean().backward()
        optimizer.step()
    return values(model, optimizer)


@pytest.mark.parametrize("again", [False, True])
def test_shares_of_calls(again, tmp_path: Path, page):
    """And a call that is repeated."""
    expected = all_shares()
    model, optimizer = net()
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, model=model, optimizer=optimizer)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    elastic_lab.HOOKS.clear()
    if again:
        elastic_lab.HOOKS[3] = lambda: lab.interrupt(3, {1: 0, 2: 0})

    def call(step: int) -> int:
        optimizer.zero_grad()
        for place in lab.job.shares(step):
            elastic_lab.reached(step)
            model(samples(step, place)).square().mean().backward()
        optimizer.step()
        return step

    for step in range(lab.job.step, STEPS):
        assert lab.job.call(call, step) == step
    lab.job.finish()
    assert not lab.failures() and not elastic_lab.HOOKS
    assert same(values(model, optimizer), expected)


def test_a_validation_inside_an_attempt_has_all_shares(tmp_path: Path, page):
    expected = all_shares()
    model, optimizer = net()
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, model=model, optimizer=optimizer)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    got = Notes(tmp_path / "got")
    for attempt in lab.job.steps(STEPS):
        with attempt as step:
            optimizer.zero_grad()
            for place in lab.job.shares(step):
                model(samples(step, place)).square().mean().backward()
            optimizer.step()
            model.eval()
            for place in lab.job.shares(step):
                with torch.no_grad():
                    model(samples(-1, place))
                got(place)
            model.train()
    assert not lab.failures()
    assert got.lines() == ["0", "1", "2"] * STEPS
    assert same(values(model, optimizer), expected)


def test_an_unprotected_job_has_its_own_share_alone(page):
    job = Job(None)
    for attempt in job.steps(2):
        with attempt as step:
            assert list(job.shares(step)) == [0]


def test_shares_are_of_ranks_whoever_has_the_same_parameters(tmp_path: Path, page):
    """Which ranks do is found out after the first step, by content and node: samples cannot depend
    on it."""
    model, optimizer = net()
    lab = Lab(tmp_path, page, 2, 4, model=model, optimizer=optimizer)
    for attempt in lab.job.steps(3):
        with attempt as step:
            assert list(lab.job.shares(step)) == [2]
            optimizer.zero_grad()
            model(samples(step, 2)).square().mean().backward()
            optimizer.step()
        if step == 0:
            lab.state.set_apart([], Replicas(0, None, (0, 2)))
    assert lab.job.step == 3 and not lab.failures()


def by_hand(kind: type[Script], notes: Notes) -> list[torch.Tensor]:
    script = kind()
    wanted = Reference(script.model)
    for step in range(SHARED):
        script.clear(step)
        for place in wanted.shares(step):
            script.share(step, samples(step, place))
            notes(step, place, torch.rand(1).item())
        before = wanted.random.snapshot()
        script.update(step)
        if wanted.random.snapshot() != before:
            wanted.keep()
    return values(script.model, script.optimizer)


def train(lab: Lab, script: Script, notes: Notes) -> None:
    """Three passes of four steps."""
    for end in (4, 8, SHARED):
        for attempt in lab.job.steps(end):
            with attempt as step:
                elastic_lab.reached(step)
                script.clear(step)
                for place in lab.job.shares(step):
                    elastic_lab.reached(step)
                    script.share(step, samples(step, place))
                    notes(step, place, torch.rand(1).item())
                script.update(step)


@pytest.mark.parametrize("kind", KINDS)
def test_shares_of_loops_of_all_kinds(kind: type[Script], tmp_path: Path, page):
    wanted, got = Notes(tmp_path / "wanted"), Notes(tmp_path / "got")
    expected = by_hand(kind, wanted)
    script = kind()
    at_seed()
    lab = Lab(tmp_path, page, 0, 3, **script.objects)
    lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    train(lab, script, got)
    assert not lab.failures()
    assert got.lines() == wanted.lines()
    assert same(values(script.model, script.optimizer), expected)
