"""lightly: MoCo's momentum encoder, and a loss with a memory bank.

Needs: lightly==1.6.0
"""

import copy

import torch
from lightly.loss import NTXentLoss
from lightly.models.utils import deactivate_requires_grad, update_momentum
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
net = torch.nn.Linear(8, 16)
follower = copy.deepcopy(net)
deactivate_requires_grad(follower)
model = DDP(net)
loss_of = NTXentLoss(memory_bank_size=(64, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer, follower=follower, loss=loss_of)
for attempt in job.steps(t.steps):
    with attempt as step:
        update_momentum(net, follower, m=0.9)
        x = torch.randn(4, 8)
        with torch.no_grad():
            key = follower(x + 0.1 * torch.randn(4, 8))
        loss = loss_of(model(x), key)
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if attempt.committed:
        t.say(step, loss)
t.end(net, follower, loss_of)
