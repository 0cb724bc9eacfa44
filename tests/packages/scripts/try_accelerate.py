"""Accelerate: its own loop, with accumulation, clipping, a schedule and gathered metrics.

Needs: accelerate==1.15.0
"""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset
from training import Training

import taskd

t = Training()
set_seed(42)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.98**n)
data = TensorDataset(torch.randn(192, 8), torch.randint(2, (192,)))
loader = DataLoader(data, batch_size=4, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
job = taskd.protect(accelerator=accelerator, model=model, optimizer=optimizer, schedule=schedule)
for _ in job.epochs(1):
    for attempt in job.batches(loader):
        step = attempt.step
        with attempt as (_, (x, y)), accelerator.accumulate(model):
            output = model(x)
            loss = torch.nn.functional.cross_entropy(output, y)
            t.at(step)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            right = accelerator.gather_for_metrics(output.argmax(1) == y).sum()
        if attempt.committed:
            t.say(step, loss, right, schedule.get_last_lr()[0])
t.end(accelerator.unwrap_model(model), optimizer.optimizer)
