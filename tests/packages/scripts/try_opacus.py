"""Opacus: DP-SGD; the accountant counts the steps.

Needs: opacus==1.6.0
"""

import torch
from opacus import PrivacyEngine
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
from torch.utils.data import DataLoader, TensorDataset
from training import Training

import taskd

t = Training()
net = DPDDP(torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
data = TensorDataset(torch.randn(64, 8), torch.randint(4, (64,)))
engine = PrivacyEngine()
net, optimizer, loader = engine.make_private(
    module=net,
    optimizer=optimizer,
    data_loader=DataLoader(data, batch_size=16),
    noise_multiplier=1.1,
    max_grad_norm=1.0,
    poisson_sampling=False,
)
t.apart()
job = taskd.protect(model=net, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        loss = torch.nn.functional.cross_entropy(net(torch.randn(16, 8)), torch.randint(4, (16,)))
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss, engine.get_epsilon(1e-5))
t.end(net, engine.get_epsilon(1e-5))
