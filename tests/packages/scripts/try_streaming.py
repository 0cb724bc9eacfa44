"""mosaicml-streaming: a StreamingDataset, which lets the ranks of a node wait for each other.

Needs: mosaicml-streaming==0.13.0
Refused: mosaicml-streaming
"""

import os
import shutil

import torch
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader
from training import Training

t = Training()
if t.rank == 0 and not os.path.exists("set"):
    with MDSWriter(out="half", columns={"x": "int"}) as writer:
        for n in range(256):
            writer.write({"x": n})
    shutil.move("half", "set")
torch.distributed.barrier()
dataset = StreamingDataset(local="set", shuffle=True, batch_size=4, shuffle_seed=3)
loader = DataLoader(dataset, batch_size=4)
t.read(loader, lambda batch: batch["x"].float().reshape(-1, 1))
