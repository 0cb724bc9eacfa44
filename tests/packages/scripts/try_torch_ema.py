"""torch-ema: averaged parameters, not given to protect.

Needs: torch-ema==0.3
"""

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_ema import ExponentialMovingAverage
from training import Training

import taskd

t = Training()
net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ema = ExponentialMovingAverage(net.parameters(), decay=0.9)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        loss = model(torch.randn(4, 8)).square().mean()
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update()
    if attempt.committed:
        t.say(step, loss)
t.end(net, optimizer, ema.state_dict())
