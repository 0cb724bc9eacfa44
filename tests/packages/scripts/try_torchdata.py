"""torchdata: a StatefulDataLoader with two workers, in two passes.

Needs: torchdata==0.11.0
"""

import torch
from torch.utils.data import TensorDataset
from torch.utils.data.distributed import DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from training import Training

t = Training()
rows = TensorDataset(torch.randn(96, 1))
sampler = DistributedSampler(rows, seed=5)
loader = StatefulDataLoader(rows, batch_size=4, sampler=sampler, num_workers=2)
t.read(loader, lambda batch: batch[0], passes=2)
