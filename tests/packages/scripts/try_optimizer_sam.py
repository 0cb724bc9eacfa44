"""pytorch_optimizer's SAM: two backwards a step, around another optimizer.

Needs: pytorch-optimizer==4.1.0
"""

import pytorch_optimizer
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2)))
optimizer = pytorch_optimizer.SAM(
    model.parameters(), base_optimizer=torch.optim.SGD, lr=0.01, momentum=0.9
)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        x = torch.randn(4, 8)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.first_step(zero_grad=True)
        t.at(step)
        model(x).square().mean().backward()
        optimizer.second_step(zero_grad=True)
    if attempt.committed:
        t.say(step, loss)
t.end(model)
