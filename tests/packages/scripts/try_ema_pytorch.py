"""ema-pytorch: an averaged model that begins to follow after some steps, not given to protect.

Needs: ema-pytorch==0.8.3
"""

import torch
from ema_pytorch import EMA
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
net = torch.nn.Linear(8, 2)
model = DDP(net)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ema = EMA(net, beta=0.9, update_after_step=5, update_every=2)
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
t.end(net, optimizer, ema.ema_model, ema.step)
