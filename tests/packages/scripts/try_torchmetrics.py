"""torchmetrics: metrics that add up over steps, on each rank, and over the ranks at the end.

Needs: torchmetrics==1.9.0
"""

import torch
import torchmetrics
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
model = DDP(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
accuracy = torchmetrics.Accuracy(task="multiclass", num_classes=4)
mean = torchmetrics.MeanMetric()
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        x, y = torch.randn(16, 8), torch.randint(4, (16,))
        out = model(x)
        loss = torch.nn.functional.cross_entropy(out, y)
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        accuracy.update(out, y)
        mean.update(loss.detach())
    if attempt.committed:
        t.say(step, loss)
t.end(model, optimizer, accuracy.compute(), mean.compute())
