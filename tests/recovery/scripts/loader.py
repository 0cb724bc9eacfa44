"""Epochs over shuffling loaders, with random augmentation: what is handed out after a fault is what
would have been without.

loader.py OUT KIND EPOCHS [NAP]

KIND: distributed, random, synced, hidden, workers, counting, steered, stateful, asked, own, later.
NAP: seconds that each step of a protected run takes longer, until OUT/hurry is there.

synced: ranks agree on the random numbers of their samplers when a pass begins, as Accelerate's
loaders do. hidden: what the data set gives depends on the process. workers: what is loaded in a
worker depends on what that has loaded before. counting: the script's own data set, batch sampler
and collator have counters and an order in attributes. steered: the data set reads what the loop
changes at each step. stateful: a loader whose iterator has the state, as torchdata's; own: one that
is its own iterator. Both are given to protect() and can be moved. asked: as torchdata's nodes.
later: a sampler counts its passes where nobody sees it, and goes another way after some.
"""

import itertools
import os
import random
import sys
import time
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
out, kind, epochs = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
nap = float(sys.argv[4]) if len(sys.argv) > 4 else 0.0
fault = faults.Injector(out, rank)


class Noisy(Dataset):
    """Three random number generators take part in every sample."""

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        fault.at("load", job.step)
        if kind == "hidden":
            index += os.getpid() % 1000
        base = torch.full((16,), index / 96.0)
        return base + 0.1 * torch.randn(16) + random.random() * 0.1 + float(
            numpy.random.rand()
        ) * 0.1, torch.tensor(index % 4)


torch.manual_seed(3)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(32, 4)
)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
torch.manual_seed(50 + rank)
random.seed(60 + rank)
numpy.random.seed(70 + rank)


class Synced(DataLoader):
    """Speaks to the other ranks in __iter__, keeps count of its passes, and fetches a batch
    ahead."""

    iteration = 0

    def __iter__(self):
        state = self.sampler.generator.get_state()
        dist.broadcast(state, 0)
        self.sampler.generator.set_state(state)
        torch.empty((), dtype=torch.int64).random_(generator=self.sampler.generator)
        batches = super().__iter__()
        ahead = next(batches)
        for batch in batches:
            yield ahead[0] + self.iteration, ahead[1]
            ahead = batch
        yield ahead[0] + self.iteration, ahead[1]
        self.iteration += 1


class Stateful(DataLoader):
    """Draws a seed when an iterator is made, which state_dict() does too."""

    iterator = then = None

    def __iter__(self):
        if self.iterator is None or self.iterator.begun:
            self.iterator = Batches(self, self.then)
            self.then = None
        self.iterator.begun = True
        return self.iterator

    def state_dict(self):
        if self.iterator is None:
            self.iterator = Batches(self, self.then)
        return {"order": self.iterator.order, "next": self.iterator.next}

    def load_state_dict(self, state):
        self.iterator, self.then = None, state


class Batches:
    def __init__(self, loader, then):
        self.data, self.begun = loader.dataset, False
        seed = int(torch.empty((), dtype=torch.int64).random_())
        order = torch.randperm(96, generator=torch.Generator().manual_seed(seed))
        self.order, self.next = (then["order"], then["next"]) if then else (order, 0)

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == 24:
            raise StopIteration
        drawn(self.next)
        chosen = self.order[4 * self.next : 4 * self.next + 4].tolist()
        self.next += 1
        x, y = zip(*(self.data[i] for i in chosen), strict=True)
        return torch.stack(x), torch.stack(y)


class Asked:
    """Asked for its state it begins a pass, which it gives whatever is loaded then. It draws for an
    order when a pass begins, and once more if it was moved to the end of the one before."""

    iterator = then = None
    state_dict = Stateful.state_dict

    def __init__(self, data):
        self.dataset = data

    def __iter__(self):
        begins = self.iterator is None or self.iterator.begun
        if begins and self.then and self.then["next"] == 24:
            torch.randint(9, ())
            self.then = None
        return Stateful.__iter__(self)

    def load_state_dict(self, state):
        self.then = state


class Own:
    """A stream without an end, of which each pass is a part."""

    def __init__(self, data):
        self.data, self.place = data, 0

    def __iter__(self):
        while True:
            drawn(self.place % 24)
            self.place += 1
            x, y = zip(*(self.data[(7 * self.place + i) % 96] for i in range(4)), strict=True)
            yield torch.stack(x), torch.stack(y)
            if self.place % 24 == 0:
                return

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Counting(Dataset):
    samples = 0

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self.samples += 1
        return torch.full((16,), index / 96.0 + self.samples % 7), torch.tensor(index % 4)


class Level:
    level = 1.0


class Steered(Dataset):
    def __init__(self) -> None:
        self.by = by

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((16,), index / 96.0 * self.by.level), torch.tensor(index % 4)


class Order:
    """A batch sampler of no torch class."""

    def __init__(self) -> None:
        self.order, self.passes = list(range(96)), 0

    def __iter__(self):
        random.Random(self.passes).shuffle(self.order)
        yield from (self.order[4 * i : 4 * i + 4] for i in range(24))
        self.passes += 1


class Later:
    """Gives the same batches on all ranks."""

    def __init__(self) -> None:
        self.passes = itertools.count()

    def __iter__(self):
        yield from range(96) if next(self.passes) < 3 else reversed(range(96))


class Collate:
    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, samples):
        self.batches += 1
        x, y = zip(*samples, strict=True)
        return torch.stack(x) / (1 + self.batches % 5), torch.stack(y)


def drawn(batch: int) -> None:
    """`batch`: which one of its pass."""
    with (out / f"drawn-{rank}").open("a") as file:
        file.write(f"{os.getpid()} {batch}\n")


class Plain(Dataset):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full((16,), index / 96.0), torch.tensor(index % 4)


data = Plain() if kind == "synced" else Noisy()
sampler = DistributedSampler(data, seed=5) if kind == "distributed" else None
loader = DataLoader(
    data, batch_size=4, sampler=sampler, shuffle=sampler is None, num_workers=int(kind == "workers")
)
if kind == "synced":
    order = torch.utils.data.RandomSampler(data, generator=torch.Generator().manual_seed(11))
    loader = Synced(data, batch_size=4, sampler=order)
by = Level()
if kind == "steered":
    loader = DataLoader(Steered(), batch_size=4, shuffle=True)
if kind == "counting":
    loader = DataLoader(Counting(), batch_sampler=Order(), collate_fn=Collate())
if kind == "later":
    loader = DataLoader(Plain(), batch_size=4, sampler=Later())
if kind == "asked":
    loader = Asked(data)
if kind in ("stateful", "own"):
    loader = Stateful(data, batch_size=4) if kind == "stateful" else Own(data)
    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler, loader=loader)
else:
    job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
fault.at("protected", int(os.environ.get("TASKD_INCARNATION", "0")))
with record.Record(out, rank) as log:
    for epoch in range(epochs):
        if sampler is not None:
            sampler.set_epoch(epoch)
        for attempt in job.batches(loader):
            with attempt as (step, (x, y)):
                fault.at("begin", step)
                loss = torch.nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                by.level += 0.125
                fault.at("tail", step)
                mean = loss.detach().clone()
                dist.all_reduce(mean)
                if nap and job.protected and not (out / "hurry").exists():
                    time.sleep(nap)
            if attempt.done:
                log.step(step, loss, mean, x.sum())
            fault.at("between", step)
        fault.at("epoch", epoch)
        scheduler.step()  # between the passes, outside of any attempt
        noise = torch.randn(1)  # as an evaluation with dropout would
    log.final(net, optimizer)
record.leave(job)
