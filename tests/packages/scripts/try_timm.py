"""timm: a model, its EMA (not given to protect), Mixup, its scheduler and meters.

Needs: timm==1.0.31
"""

import timm
import torch
from timm.data import Mixup
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

import taskd

t = Training()
net = timm.create_model("test_resnet", num_classes=4)
model = DDP(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = CosineLRScheduler(optimizer, t_initial=t.steps, warmup_t=3)
ema = ModelEmaV3(net, decay=0.9)
mixup = Mixup(mixup_alpha=0.4, num_classes=4)
meter = AverageMeter()
t.apart()
import numpy as np  # Mixup draws from it

np.random.seed(t.rank)
job = taskd.protect(model=model, optimizer=optimizer, scheduler=scheduler)
for attempt in job.steps(t.steps):
    with attempt as step:
        x, y = mixup(torch.randn(4, 3, 32, 32), torch.randint(4, (4,)))
        loss = torch.nn.functional.cross_entropy(model(x), y)
        t.at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step(step + 1)
        ema.update(net, step=step)
        meter.update(loss.item(), 4)
    if attempt.committed:
        t.say(step, loss, meter.avg, optimizer.param_groups[0]["lr"])
t.end(net, optimizer, ema, meter.avg)
