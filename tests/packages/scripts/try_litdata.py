"""litdata: a StreamingDataset of local chunks, shuffled, with two workers.

Needs: litdata==0.2.76
"""

import os
from pathlib import Path

import litdata
import torch
from training import Training


def row(n: int) -> torch.Tensor:
    return torch.tensor([float(n)])


if __name__ == "__main__":
    t = Training()
    folder = Path(os.environ["OUT"]).resolve() / "chunks"
    if t.rank == 0 and not folder.exists():
        litdata.optimize(row, list(range(256)), str(folder), chunk_size=16, num_workers=1)
    torch.distributed.barrier()
    dataset = litdata.StreamingDataset(str(folder), shuffle=True, seed=3)
    loader = litdata.StreamingDataLoader(dataset, batch_size=4, num_workers=2)
    t.read(loader, lambda batch: batch)
