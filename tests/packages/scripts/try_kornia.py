"""kornia: random augmentations in the model.

Needs: kornia==0.9.0
"""

import kornia.augmentation as K
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

t = Training()
change = torch.nn.Sequential(K.RandomHorizontalFlip(), K.RandomRotation(20.0), K.ColorJitter(0.2))
net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten())
head = torch.nn.Linear(4 * 14 * 14, 3)
model = DDP(torch.nn.Sequential(net, head))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def loss_of():
    x, y = change(torch.rand(4, 3, 16, 16)), torch.randint(3, (4,))
    return torch.nn.functional.cross_entropy(model(x), y)


t.optimize(optimizer, model, loss_of)
t.end(model, optimizer)
