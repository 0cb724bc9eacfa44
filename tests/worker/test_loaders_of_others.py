"""The batches of ranks that are away, of loaders of all kinds: those of a full job, or refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, TensorDataset

from taskd.core.snapshots import FINAL
from taskd.records.store import Entries
from taskd.worker.state import entry as entries
from taskd.worker.state.entry import Entry
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.random_state import RandomState
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab, seeded, with_seed
from tests.worker.elastic_scripts import Script
from tests.worker.test_shares import SEEDS, Notes, at_seed

DATA = torch.arange(60.0).reshape(60, 1).repeat(1, 4)
PASSES, STEPS = 3, 4


class Own:
    """A loader of the script's: its state lacks its rank and its epoch."""

    def __init__(self, rank: int) -> None:
        self.rank, self.epoch, self.at = rank, 0, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        vars(self).update(state)

    def __iter__(self):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(self.epoch))[
            self.rank :: 3
        ]
        while self.at < STEPS:
            self.at += 1
            yield (DATA[order[5 * self.at - 5 : 5 * self.at]],)
        self.at = 0


class Whole(Own):
    def state_dict(self) -> dict[str, int]:
        return dict(vars(self))


class Bucketed(DistributedSampler):
    """Computes its part in set_epoch, as samplers by length do."""

    part: tuple[int, ...] = ()

    def set_epoch(self, epoch: int) -> None:
        super().set_epoch(epoch)
        self.part = tuple(DistributedSampler.__iter__(self))

    def __iter__(self):
        return iter(self.part)


class Reused(Dataset):
    """All batches are in the same memory."""

    def __init__(self) -> None:
        self.out = torch.empty(5, 4)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (self.out.copy_(DATA[5 * index : 5 * index + 5]),)


class Noisy(TensorDataset):
    def __getitem__(self, index: int) -> tuple[torch.Tensor]:
        return (DATA[index] + torch.rand(1),)


def bucketed(rank: int) -> DataLoader:
    data = TensorDataset(DATA)
    return DataLoader(data, 5, sampler=Bucketed(data, 3, rank, seed=4))


def reused(rank: int) -> DataLoader:
    data = Reused()
    return DataLoader(data, None, sampler=DistributedSampler(data, 3, rank, seed=4))


def persistent(rank: int) -> DataLoader:
    data = Noisy(DATA)
    sampler = DistributedSampler(data, 3, rank, seed=4)
    return DataLoader(data, 5, sampler=sampler, num_workers=1, persistent_workers=True)


Make = Callable[[int], Any]


def begin(data: Any, number: int) -> Any:
    getattr(data, "sampler", data).set_epoch(number)
    return data


def full(make: Make) -> list[str]:
    """What the ranks of a full job read."""
    random, lines = RandomState(torch.device("cpu")), {}
    here = random.snapshot()
    for place, seed in SEEDS.items():
        data, step = make(place), 0
        random.restore(seeded(seed))
        for number in range(PASSES):
            for (x,) in begin(data, number):
                lines[step, place] = f"{step} {x.sum().item()} {torch.rand(1).item()}"
                step += 1
    random.restore(here)
    return [lines[key] for key in sorted(lines)]


class Stopped(Exception): ...


def train(lab: Lab, script: Script, data: Any, notes: Notes, until: int = -1) -> None:
    script.model.module.drop.p = 0.0
    for number in range(PASSES):
        for attempt in lab.job.batches(begin(data, number)):
            with attempt as (step, (x,)):
                elastic_lab.reached(step)
                if step == until:
                    raise Stopped
                script.clear(step)
                script.share(step, x)
                notes(step, x.sum().item(), torch.rand(1).item())
                script.optimizer.step()
        if number == 0 and until == STEPS:
            raise Stopped


def record(folder: Path, page: Any, make: Make, rank: int, at: int) -> tuple[int, Entry]:
    """What a rank leaves that is lost in step `at`, or at the end of its first pass."""
    script = Script()
    lab = Lab(folder, page, rank, 3, **script.objects)
    lab.seed(SEEDS[rank])
    with pytest.raises(Stopped):
        train(lab, script, make(rank), Notes(folder / "nothing"), at)
    if at < STEPS:
        return FINAL, lab.entry(at)
    file = Entries(folder, rank, rank)
    kind, payload = file.read(at)
    return kind, entries.decode(payload, file.seal, at)


def loses(tmp_path: Path, page: Any, make: Make, at: int) -> tuple[list[str], list[str]]:
    """Ranks 1 and 2 are lost. What is read afterwards, and failures."""
    elastic_lab.HOOKS.clear()
    script, data, notes = Script(), make(0), Notes(tmp_path / "got")
    if at:
        kept = {rank: record(tmp_path, page, make, rank, at) for rank in (1, 2)}
    lab = Lab(tmp_path, page, 0, 3, **script.objects)

    def lose() -> None:
        for rank, (kind, entry) in kept.items():
            lab.leave(rank, at, kind, entry)
        lab.interrupt(at, {1: 0, 2: 0})

    if at == 0:
        at_seed()
        lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    else:
        lab.seed(SEEDS[0])
        if at < STEPS:
            elastic_lab.HOOKS[at] = lose
        else:
            lab.line.orders.append(lose)
    try:
        train(lab, script, data, notes)
    except (WouldDiverge, KeyError) as error:  # the lab's coordinator knows no other way
        return [], [*lab.failures(), str(error)]
    lines = [line for line in notes.lines() if int(line.split()[0]) >= at]
    return lines[0 < at < STEPS :], lab.failures()  # the step is repeated


@pytest.fixture
def page(tmp_path):
    with elastic_lab.alone(tmp_path) as page:
        yield page


@pytest.mark.parametrize(
    ("make", "at"),
    [(Whole, 2), (Whole, 4), (bucketed, 0), (bucketed, 4), (reused, 2), (persistent, 0)],
)
def test_batches_are_those_of_a_full_job(make, at, tmp_path: Path, page):
    wanted = full(make)[3 * at :]
    found, failures = loses(tmp_path, page, make, at)
    assert not failures
    assert found == wanted


@pytest.mark.parametrize(
    ("make", "at", "says"),
    [
        (Whole, 0, "was lost before it had begun to read this Whole"),
        (Own, 2, "gave a different batch for step 2"),
        (Own, 4, "gave a different batch for step 4"),
    ],
)
def test_what_cannot_be_known_is_refused(make, at, says, tmp_path: Path, page):
    _, failures = loses(tmp_path, page, make, at)
    assert any(says in why for why in failures), failures


def test_workers_that_are_lost_are_told(tmp_path: Path, page, caplog):
    loses(tmp_path, page, persistent, STEPS)
    assert "rank 2 is away: the workers of its DataLoader begin anew" in caplog.text
