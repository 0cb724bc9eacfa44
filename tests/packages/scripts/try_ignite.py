"""pytorch-ignite: its metrics over steps.

Needs: pytorch-ignite==0.5.5
"""

import ignite.distributed as idist
import torch
from ignite.metrics import Accuracy, RunningAverage
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
model = DDP(torch.nn.Linear(8, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
idist.sync()  # else its first metric makes a group, in a step, where a replacement would be alone
accuracy = Accuracy()
mean = RunningAverage(output_transform=lambda value: value)
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
        accuracy.update((out.detach(), y))
        mean.update(loss.item())
    if attempt.committed:
        t.say(step, loss, mean.compute())
t.end(model, optimizer, accuracy._num_examples, float(accuracy._num_correct))
