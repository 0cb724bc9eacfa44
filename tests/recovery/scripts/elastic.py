"""A job whose replicas leave and come back, and by hand what it should have done.

elastic.py OUT shares|accumulate STEPS [PLAN]

Each data rank has random numbers of its own (dropout, noise on the samples), and by DDP the
buffers of data rank 0. PLAN, of a run without taskd: who stands in for whom from which step on,
such as `7:3=0;12:3=0,2=1;20:`. OUT/shares-R has each loss that rank R has computed, with its
process and the samples.
"""

import contextlib
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import record

SAMPLES, BATCH = 192, 4
NAP = 0.1  # seconds that a step of a protected run takes longer, until OUT/hurry is there

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
out, kind, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
plan = sys.argv[4] if len(sys.argv) > 4 else None
every = {"shares": 1, "accumulate": 3}[kind]  # steps between two updates


torch.manual_seed(3)
net = torch.nn.Sequential(
    torch.nn.Linear(16, 32),
    torch.nn.BatchNorm1d(32),
    torch.nn.Dropout(0.2),
    torch.nn.Tanh(),
    torch.nn.Linear(32, 4),
)
model = DDP(net)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.9)
torch.manual_seed(50 + rank)


def samples(step, data_rank):
    generator = torch.Generator().manual_seed(1000 * step + data_rank)
    index = torch.randint(0, SAMPLES, (BATCH,), generator=generator)
    x = torch.full((BATCH, 16), 1 / SAMPLES) * index[:, None] + 0.1 * torch.randn(BATCH, 16)
    return x, index % 4, index


def loss_of(step, batch):
    x, y, index = batch
    loss = torch.nn.functional.cross_entropy(model(x), y)
    where = "-".join(map(str, index.tolist()))
    with open(out / f"shares-{rank}", "a") as file:
        file.write(f"{step} {os.getpid()} {loss.item().hex()} {where}\n")
    return loss


def updating(step):
    """Where gradients are not averaged yet, they wait."""
    return contextlib.nullcontext() if (step + 1) % every == 0 else model.no_sync()


def nap():
    if not (out / "hurry").exists():
        time.sleep(NAP)


computed = []


def with_shares(log, job):
    for attempt in job.steps(steps):
        with attempt as step:
            computed.clear()
            count = 0
            if step % every == 0:
                optimizer.zero_grad()
            for data_rank in job.shares(step):
                with updating(step):
                    (loss_of(step, samples(step, data_rank)) / every).backward()
                computed.append(data_rank)
                count += 1
            # what a script counts over its shares is of all of them
            assert rank in computed and len(computed) == len(set(computed)) == count, computed
            update(step)
            nap()
        if attempt.done:
            log.step(step, next(net.parameters()).sum())


def update(step):
    if (step + 1) % every == 0:
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        optimizer.step()
        scheduler.step()


# -- the same without taskd ------------------------------------------------------------------------


class ByHand:
    """`states`: random numbers and buffers of each data rank that this process computes."""

    def __init__(self):
        self.store, self.changes = dist.distributed_c10d._get_default_store(), 0
        self.everybody = dist.new_group()
        self.states = {rank: self.now()}
        self.present, self.first = list(range(world)), 0

    def begin(self):
        """As in a full job by DDP, each data rank begins with the buffers of the first, if the
        gradients of the step before were averaged."""
        for number, buffer in enumerate(net.buffers()):
            value = self.states[0][1][number] if 0 in self.states else buffer.clone()
            dist.broadcast(value, self.first, self.everybody)
            for _, buffers in self.states.values():
                buffers[number].copy_(value)

    def now(self):
        return torch.get_rng_state(), [b.clone() for b in net.buffers()]

    def put(self, data_rank):
        numbers, buffers = self.states[data_rank]
        torch.set_rng_state(numbers)
        for buffer, value in zip(net.buffers(), buffers, strict=True):
            buffer.copy_(value)

    def change(self, stand_ins):
        """Let data ranks change hands; the members that are left get a backend of their own."""
        everything = [None] * world
        mine = (self.states, net.state_dict(), optimizer.state_dict(), scheduler.state_dict())
        waiting = [p.grad for p in net.parameters()]
        # whether DDP sends the buffers in the next forward
        more = waiting, model.require_forward_param_sync
        dist.all_gather_object(everything, (*mine, *more), self.everybody)
        source = everything[self.present[0]]
        states = {r: s for found in everything for r, s in found[0].items()}
        if rank not in self.present:
            net.load_state_dict(source[1])
            optimizer.load_state_dict(source[2])
            scheduler.load_state_dict(source[3])
            model.require_forward_param_sync = source[5]
        self.states = {r: states[r] for r in range(world) if stand_ins.get(r, r) == rank}
        if rank not in self.present:
            optimizer.zero_grad()
        for away in sorted(r for r, s in stand_ins.items() if s == rank and r in self.present):
            for parameter, more in zip(net.parameters(), everything[away][4], strict=True):
                if more is not None:
                    parameter.grad += more
        self.present = [r for r in range(world) if r not in stand_ins]
        self.changes, self.first = self.changes + 1, stand_ins.get(0, 0)
        if rank not in self.present:
            return
        self.put(rank)
        gloo = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices, options._timeout = [gloo.create_default_device()], timedelta(seconds=60)
        prefix = dist.PrefixStore(f"by-hand/{self.changes}", self.store)
        number, count = self.present.index(rank), len(self.present)
        backend = gloo(prefix, number, count, options)
        backend._set_sequence_number_for_group()
        of = dist.ProcessGroup.BackendType(100 + self.changes)
        dist.group.WORLD._register_backend(torch.device("cpu"), of, backend)
        dist.group.WORLD._set_default_backend(of)

    def shares(self):
        """The data ranks in turn, each with its state."""
        for number, data_rank in enumerate(sorted(self.states)):
            model.require_backward_grad_sync = number == len(self.states) - 1
            self.put(data_rank)
            yield data_rank
            self.states[data_rank] = self.now()
        self.put(rank)


def by_hand(log):
    job, changes = ByHand(), {}
    for text in plan.split(";"):
        at, _, pairs = text.partition(":")
        found = (pair.split("=") for pair in pairs.split(",") if pair)
        changes[int(at)] = {int(away): int(stand_in) for away, stand_in in found}
    for step in range(steps):
        if step in changes:
            job.change(changes[step])
        if step % every == 0:
            job.begin()
        if rank not in job.present:
            continue
        if step % every == 0:
            optimizer.zero_grad()
        for data_rank in job.shares():
            with updating(step):
                (loss_of(step, samples(step, data_rank)) / every).backward()
        update(step)
        log.step(step, next(net.parameters()).sum())


with record.Record(out, rank) as log:
    if plan is not None:
        by_hand(log)
    else:
        job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
        with_shares(log, job)
    log.final(net, optimizer)
if plan is None:
    record.leave(job)
os._exit(0)  # without the end of gloo's own, see record.leave
