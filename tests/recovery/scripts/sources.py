"""Passes over what scripts write themselves to get data from, each with a state of its own.

sources.py OUT KIND PASSES

KIND: counting (a class with __iter__ that counts its passes), again (its own iterator, which every
iter() has begin again, with a generator), noted (a data set that notes in a dict what it has given,
read by torch's loader).
"""

import random
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
out, kind, passes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
fault = faults.Injector(out, rank)
EACH = 8  # batches of a pass


class Counting:
    def __init__(self) -> None:
        self.passes, self.given = 0, 0

    def __len__(self) -> int:
        return EACH

    def __iter__(self):
        self.passes += 1
        drawn = torch.Generator().manual_seed(10 * self.passes + rank)
        for _ in range(EACH):
            self.given += 1
            yield torch.randn(4, 16, generator=drawn) + 0.01 * self.given


class Again(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.random = random.Random(rank)

    def __iter__(self):
        self.given = 0
        self.passes += 1
        return self

    def __next__(self):
        if self.given == EACH:
            raise StopIteration
        self.given += 1
        seed = self.random.randrange(1000) + self.passes
        return torch.randn(4, 16, generator=torch.Generator().manual_seed(seed))


class Noted(Dataset):
    def __init__(self) -> None:
        self.noted: dict[int, int] = {}

    def __len__(self) -> int:
        return 4 * EACH

    def __getitem__(self, index: int) -> torch.Tensor:
        self.noted[index] = self.noted.get(index, 0) + 1
        return torch.full((16,), index / 32) * self.noted[index]


torch.manual_seed(3)
model = DDP(torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = {
    "counting": Counting,
    "again": Again,
    "noted": lambda: DataLoader(Noted(), batch_size=4, shuffle=True),
}[kind]()
torch.manual_seed(50 + rank)
job = taskd.protect(model=model, optimizer=optimizer)
with record.Record(out, rank) as log:
    for _ in range(passes):
        for attempt in job.batches(loader):
            with attempt as (step, x):
                fault.at("begin", step)
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
                fault.at("tail", step)
            if attempt.done:
                log.step(step, loss, x.sum())
    log.final(model, optimizer)
record.leave(job)
