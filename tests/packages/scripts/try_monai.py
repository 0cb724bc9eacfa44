"""monai: a UNet with a Dice loss, and random transforms of its own.

Needs: monai==1.6.1
"""

import torch
from monai.losses import DiceLoss
from monai.metrics import DiceMetric
from monai.networks.nets import UNet
from monai.transforms import Compose, RandFlip, RandGaussianNoise
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
model = DDP(UNet(2, 1, 2, channels=(4, 8), strides=(2,)))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
loss_of, metric = DiceLoss(to_onehot_y=True, softmax=True), DiceMetric()
change = Compose([RandFlip(prob=0.5, spatial_axis=0), RandGaussianNoise(prob=0.5)])
change.set_random_state(seed=t.rank)
t.apart()
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(t.steps):
    with attempt as step:
        x = torch.stack([torch.as_tensor(change(torch.randn(1, 16, 16))) for _ in range(2)])
        y = (torch.rand(2, 1, 16, 16) > 0.5).float()
        out = model(x)
        loss = loss_of(out, y)
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        overlap = metric(out.argmax(1, keepdim=True), y)
        metric.reset()  # it keeps all that it was given
    if attempt.committed:
        t.say(step, loss, overlap)
t.end(model, optimizer)
