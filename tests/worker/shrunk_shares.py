"""Training loops in real ranks, some of which go away; each function runs in every rank, see
test_shares_of_ranks.py. What is computed by hand is a full job: sums agree up to their order."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from taskd.cython_api import slot
from taskd.records import nested, sealed, store
from taskd.worker.state import entry as entries
from taskd.worker.state import gradients, replicas
from taskd.worker.state.random_state import RandomState
from tests.worker.elastic_lab import Lab, seeded
from tests.worker.shrinking import Rank

STEPS = 12  # of four ranks, 8 of six


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm = nn.Linear(4, 8).double(), nn.BatchNorm1d(8).double()
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(8, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.norm(self.first(x)).tanh()))


class Plain(nn.Module):
    """As Net, without buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.last = nn.Linear(4, 8).double(), nn.Linear(8, 2).double()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(self.first(x).tanh()))


DATA = torch.randn(4 * 5 * STEPS, 4, generator=torch.Generator().manual_seed(9)).double()


def loader(place: int, lanes: int) -> DataLoader:
    data = TensorDataset(DATA)
    return DataLoader(data, 5, sampler=DistributedSampler(data, lanes, place, seed=4))


class Script:
    """`clears`, `updates`: at which steps; `syncs`: whether DDP averages in a step."""

    every = 1
    syncs = True

    def clears(self, step: int) -> bool:
        return step % self.every == 0

    def updates(self, step: int) -> bool:
        return step % self.every == self.every - 1

    def averages(self, step: int) -> bool:
        return self.syncs or self.updates(step)


class Each(Script): ...


class OverThree(Script):
    every = 3


class OverThreeWithoutSync(Script):
    every, syncs = 3, False


Buffers = list[list[torch.Tensor]]


def by_hand(
    script: Script, lanes: int, broadcast: bool, kind: type[nn.Module] = Net
) -> tuple[nn.Module, Buffers]:
    """The model and the buffers of each rank, of a full job."""
    net, random = kind(), RandomState(torch.device("cpu"))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    states = [seeded(50 + place) for place in range(lanes)]
    buffers = [[b.clone() for b in net.buffers()] for _ in range(lanes)]
    batches = by_place(lanes)
    synced = True  # DDP broadcasts buffers after a forward that it averages
    for step in range(STEPS * 4 // max(lanes, 4)):
        if script.clears(step):
            optimizer.zero_grad()
        first = [b.clone() for b in buffers[0]]
        for place in range(lanes):
            random.restore(states[place])
            begin = first if broadcast and synced else buffers[place]
            for b, value in zip(net.buffers(), begin, strict=True):
                b.copy_(value)
            (net(batches[place][step]).square().mean() / lanes).backward()
            states[place] = random.snapshot()
            buffers[place] = [b.clone() for b in net.buffers()]
        synced = script.averages(step)
        if script.updates(step):
            optimizer.step()
    return net, buffers


def lab_of(job: Rank, **objects: Any) -> Lab:
    """After `init_process_group`, before the loop."""
    folder = Path(os.environ["FOLDER"])
    if job.rank == 0:
        os.mkfifo(folder / store.NOTES)
        sealed.write_key(folder, b"k" * sealed.KEY_BYTES, "a-job")
    dist.barrier()
    world = dist.get_world_size()
    job.rebuild()
    lab = Lab(folder, None, job.rank, world, communicators=job.communicators, **objects)
    lab.store = "127.0.0.1", job.port
    state = lab.state
    found = replicas.compare(state, job.rank, 0, job.communicators.present)
    if found is not None:
        state.set_apart(found.apart, found.replicas)
    lab.loop.recorder.formed()
    return lab


def leaves(lab: Lab, step: int, stand_ins: dict[int, int]) -> bool:
    """Between two steps: the job goes on without these ranks. Returns whether this one leaves."""
    if lab.rank in stand_ins:
        for file in lab.directory.glob(f"entries-{lab.rank}.*"):
            os.link(file, lab.directory / f"entries-{store.away(lab.rank)}{file.suffix}")
    dist.barrier()
    lab.interrupt(step, stand_ins)
    if lab.rank in stand_ins:
        slot.started(slot.ALL_DONE)  # the others' page would be another node's
    return lab.rank in stand_ins


def same(one: Any, other: Any, what: str) -> None:
    for a, b in zip(one, other, strict=True):
        assert torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-11), (what, a, b)


def trains(job: Rank, script: Script, stand_ins: dict[int, int], at: int, broadcast: bool) -> None:
    net = Net()
    model = DistributedDataParallel(net, broadcast_buffers=broadcast)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lab = lab_of(job, model=model, optimizer=optimizer)
    lab.seed(50 + job.rank)
    batches = by_place(4)
    for attempt in lab.job.steps(STEPS):
        with attempt as step:
            if script.clears(step):
                optimizer.zero_grad()
            for place in lab.job.shares(step):
                model.require_backward_grad_sync = script.averages(step)
                model(batches[place][step]).square().mean().backward()
            if script.updates(step):
                optimizer.step()
        if attempt.done and step == at - 1 and leaves(lab, at, stand_ins):
            return
        if attempt.done and step == 6 and script.every == 3 and script.syncs:
            waits(lab, 7)
    assert not lab.failures(), lab.failures()
    expected, buffers = by_hand(script, 4, broadcast)
    same(net.parameters(), expected.parameters(), "parameters")
    same(net.buffers(), buffers[job.rank], "buffers")
    standing = lab.session.standing
    ours = standing._memory.gathered()
    for rank, away in standing.mine.items():
        theirs = b"".join(b.numpy().tobytes() for b in buffers[rank])
        a, b = (
            torch.frombuffer(bytearray(v), dtype=torch.uint8)
            for v in (away.own["buffers"].now(ours), theirs)
        )
        same(_floats(a), _floats(b), f"buffers of rank {rank}")


def _floats(data: torch.Tensor) -> list[torch.Tensor]:
    """Mean, variance and count of one norm."""
    return [
        data[:64].view(torch.float64),
        data[64:128].view(torch.float64),
        data[128:].view(torch.int64),
    ]


def by_place(lanes: int) -> dict[int, list[torch.Tensor]]:
    random = RandomState(torch.device("cpu"))
    before = random.snapshot()
    found = {place: [x for (x,) in loader(place, lanes)] for place in range(lanes)}
    random.restore(before)
    return found


def nobody(job: Rank) -> None:
    trains(job, OverThree(), {}, 4, broadcast=True)


def a_last_rank(job: Rank) -> None:
    trains(job, Each(), {3: 0}, 4, broadcast=True)


def the_first_rank(job: Rank) -> None:
    trains(job, Each(), {0: 2, 1: 2}, 5, broadcast=True)


def own_buffers(job: Rank) -> None:
    trains(job, Each(), {1: 3, 2: 0}, 5, broadcast=False)


def waiting_averages(job: Rank) -> None:
    trains(job, OverThree(), {2: 1}, 4, broadcast=True)


def waiting_sums(job: Rank) -> None:
    trains(job, OverThreeWithoutSync(), {2: 1, 3: 0}, 5, broadcast=True)


def waiting_averages_of_two(job: Rank) -> None:
    trains(job, OverThree(), {0: 1, 2: 3}, 4, broadcast=False)


def waits(lab: Lab, step: int) -> None:
    """Where averages wait, the ranks that are away have them too."""
    own = lab.entry(step)
    for rank, record in nested.unpack(own.nested).items():
        seal = replace(lab.session.entries.seal, rank=rank)
        ours, theirs = (
            gradients.read(e.parts["gradients"])[0]
            for e in (own, entries.decode(record, seal, step))
        )
        assert ours and len(theirs) == len(ours), len(theirs)
        for (i, _, a), (j, _, b) in zip(ours, theirs, strict=True):
            assert i == j and torch.equal(a, b)


def hsdp(job: Rank, script: Script, stand_ins: dict[int, int]) -> None:
    """Three lanes of two shards."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = Plain()
    mesh = init_device_mesh("cpu", (3, 2), mesh_dim_names=("replicate", "shard"))
    for module in (model.first, model.last, model):
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    lab = lab_of(job, model=model, optimizer=optimizer)
    assert lab.state.replicas.members == (job.rank % 2, job.rank % 2 + 2, job.rank % 2 + 4)
    lab.seed(50 + job.rank)
    at, batches = 4, by_place(6)
    for attempt in lab.job.steps(STEPS * 4 // 6):
        with attempt as step:
            if script.clears(step):
                optimizer.zero_grad()
            for place in lab.job.shares(step):
                model.set_requires_all_reduce(script.averages(step))
                model(batches[place][step]).square().mean().backward()
            if script.updates(step):
                optimizer.step()
        if attempt.done and step == at - 1 and leaves(lab, at, stand_ins):
            return
        if attempt.done and step == 6 and script.every == 3:
            waits(lab, 7)
    assert not lab.failures(), lab.failures()
    if stand_ins:
        wanted = sorted(away for away, by in stand_ins.items() if by == job.rank)
        assert sorted(lab.session.standing.mine) == wanted
    expected, _ = by_hand(script, 6, False, Plain)
    same([p.full_tensor() for p in model.parameters()], expected.parameters(), "parameters")


def no_lane_of_hsdp(job: Rank) -> None:
    hsdp(job, Each(), {})


def a_lane_of_hsdp(job: Rank) -> None:
    hsdp(job, Each(), {2: 0, 3: 1})


def two_lanes_of_hsdp(job: Rank) -> None:
    hsdp(job, Each(), {0: 4, 1: 5, 2: 4, 3: 5})


def waiting_averages_of_hsdp(job: Rank) -> None:
    hsdp(job, OverThree(), {0: 2, 1: 3})
