"""Batches that the script keeps over a step: in attributes and buffers, in the closure of a hook,
in a window that the loop moves on, in a list that it makes anew. What is there when a step is
undone may be the batch that the step gets again."""

import collections
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

import taskd

sys.path.insert(0, str(Path(__file__).parent))
import faults
import record

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
out, steps = Path(sys.argv[1]), int(sys.argv[2])
fault = faults.Injector(out, rank)
torch.manual_seed(3)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Linear(8, 4)
        self.last = torch.zeros(8, 8)
        self.register_buffer("seen", torch.zeros(8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = self.body(x) + 0.1 * self.body(self.last + self.seen)
        self.last = self.seen = x
        return given


def keeping():
    last = torch.zeros(8, 8)

    def hook(module, inputs, output):
        nonlocal last
        before, last = last, inputs[0]
        return output + 0.1 * before.mean()

    return hook


net = Net()
net.register_forward_hook(keeping())
model = DDP(net, broadcast_buffers=False)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
torch.manual_seed(50 + rank)
samples = [(torch.randn(8), i % 4) for i in range(8 * steps)]  # a batch is a list
order = torch.Generator().manual_seed(rank)
loader = DataLoader(samples, batch_size=8, shuffle=True, generator=order)
job = taskd.protect(model, optimizer)
window = collections.deque([torch.zeros(8, 8)] * 3, maxlen=3)
batches = collections.deque([[torch.zeros(8, 8), torch.zeros(8)]] * 2, maxlen=2)
previous = [torch.zeros(8, 8), {"batch": [torch.zeros(8, 8)]}]
with record.Record(out, rank) as log:
    for attempt in job.batches(loader):
        with attempt as (step, batch):
            fault.at("begin", step)
            x, wanted = batch
            window.append(x)
            batches.append(batch)
            mixed = x + 0.1 * window[0] + 0.1 * previous[0] + 0.1 * previous[1]["batch"][0]
            mixed += 0.1 * batches[0][0] + batches[0][1].float().mean()
            loss = torch.nn.functional.cross_entropy(model(mixed) + model(x), wanted)
            previous = [x, {"batch": batch}]
            optimizer.zero_grad()
            loss.backward()
            fault.at("backward-done", step)
            optimizer.step()
            fault.at("tail", step)
            mean = loss.detach().clone()
            dist.all_reduce(mean)
        if attempt.done:
            log.step(step, loss, mean, x.sum())
    log.final(net, optimizer)
record.leave(job)
