"""A loop of the script's own with Accelerate's prepared objects, which protect() is given as one.

accelerated.py OUT KIND   batches: job.batches, an update in every second attempt (accumulate)
                          calls: job.iterate and job.call, with metrics gathered in each epoch
                          uneven: as batches, even_batches=False
                          skipping: as batches, after the first two of each pass
Faults come from the environment, see tests/recovery/scripts/faults.py.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import taskd

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "recovery/scripts"))
import faults
import record

out, kind = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
torch.set_num_threads(1)
torch.manual_seed(3)
fault = faults.Injector(out, rank)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(even_batches=kind != "uneven"),
)


class Count:
    """Registered for checkpoints."""

    batches = 0

    def state_dict(self):
        return {"batches": self.batches}

    def load_state_dict(self, state):
        self.batches = state["batches"]


net = nn.Sequential(nn.Linear(6, 512), nn.Dropout(0.1), nn.Linear(512, 1))
data = TensorDataset(torch.randn(45, 6), torch.randn(45, 1))
train = DataLoader(data, batch_size=4, shuffle=True)
test = DataLoader(TensorDataset(torch.randn(11, 6), torch.randn(11, 1)), batch_size=2)
adam = torch.optim.AdamW(net.parameters(), lr=1e-2)
linear = torch.optim.lr_scheduler.LinearLR(adam, 1.0, 0.1, 30)
model, optimizer, train, test, scheduler = accelerator.prepare(net, adam, train, test, linear)
count = Count()
accelerator.register_for_checkpointing(count)
job = taskd.protect(accelerator=accelerator)


def micro_step(step, batch):
    x, y = batch
    fault.at("begin", step)
    with accelerator.accumulate(model):
        loss = (model(x) - y).square().mean()
        accelerator.backward(loss)
        fault.at("backward", step)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    count.batches += 1
    fault.at("tail", step)
    return loss.detach()


def evaluate():
    model.eval()
    errors = []
    with torch.no_grad():
        for x, y in test:
            fault.at("evaluate", len(errors))
            errors.append(accelerator.gather_for_metrics((model(x) - y).square()))
    model.train()
    return torch.cat(errors).mean()


def call(step, batches):
    """A step, or an evaluation at the end of an epoch."""
    try:
        batch = next(batches)
    except StopIteration:
        return evaluate(), True
    return micro_step(step, batch), False


with record.Record(out, rank) as log:
    if kind == "calls":
        batches = job.iterate(lambda epoch: train)
        for step in range(job.step, 21):  # 3 epochs of 6 batches, and their evaluations
            loss, over = job.call(call, step, batches)
            log.step(step, loss)
    else:
        for _ in range(3):
            begun = accelerator.skip_first_batches(train, 2) if kind == "skipping" else train
            for attempt in job.batches(begun):
                with attempt as (step, batch):
                    loss = micro_step(step, batch)
                if attempt.done:
                    log.step(step, loss)
    job.finish()
    numbers = f"{accelerator.step}-{accelerator.sync_gradients}-{count.batches}"
    print(f"final {os.getpid()} counters {numbers}", file=log._file, flush=True)
    log.final(net, adam, linear)
if not job.protected:
    dist.barrier()
    os._exit(0)
