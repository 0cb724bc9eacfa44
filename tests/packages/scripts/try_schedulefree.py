"""schedulefree: AdamWScheduleFree, switched between its modes.

Needs: schedulefree==1.4.1
"""

import schedulefree
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from training import Training

t = Training()
model = DDP(torch.nn.Linear(8, 2))
optimizer = schedulefree.AdamWScheduleFree(model.parameters(), lr=1e-2)
optimizer.train()
t.optimize(optimizer, model)
optimizer.eval()
t.end(model)
