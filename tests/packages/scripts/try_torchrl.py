"""torchrl: a replay buffer and a target network that follows softly.

Needs: torchrl==0.14.1 tensordict==0.14.3
"""

import torch
from tensordict import TensorDict
from torch.nn.parallel import DistributedDataParallel as DDP
from torchrl.data import LazyTensorStorage, ReplayBuffer
from training import Training

import taskd

t = Training()
net = torch.nn.Linear(4, 2)
model = DDP(net)
target = torch.nn.Linear(4, 2).requires_grad_(False)
target.load_state_dict(net.state_dict())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
buffer = ReplayBuffer(storage=LazyTensorStorage(256), batch_size=8)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer, target=target, buffer=buffer)
for attempt in job.steps(t.steps):
    with attempt as step:
        buffer.extend(TensorDict({"x": torch.randn(8, 4), "r": torch.rand(8)}, batch_size=[8]))
        rows = buffer.sample()
        with torch.no_grad():
            wanted = rows["r"] + 0.9 * target(rows["x"]).max(1).values
        loss = (model(rows["x"]).max(1).values - wanted).square().mean()
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(target.parameters(), net.parameters(), strict=True):
                old.lerp_(new, 0.1)
    if attempt.committed:
        t.say(step, loss)
t.end(net, target)
