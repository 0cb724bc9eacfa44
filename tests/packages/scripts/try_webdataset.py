"""webdataset: shards with a shuffle buffer that has a seed, in two passes of job.batches.

Needs: webdataset==1.0.2
"""

import io
import os
import tarfile
from pathlib import Path

import torch
import webdataset
from training import Training

UNSEEDED = bool(os.environ.get("UNSEEDED"))
t = Training()
folder = Path(f"shards-{t.rank}")
if not folder.exists():
    folder.mkdir()
    for shard in range(8):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for n in range(12):
                data = f"{shard * 12 + n}".encode()
                entry = tarfile.TarInfo(f"{n:04}.txt")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
dataset = webdataset.WebDataset(
    [str(folder / f"{shard}.tar") for shard in range(8)],
    shardshuffle=False,
    nodesplitter=webdataset.split_by_node,
)
shuffle = webdataset.shuffle(16) if UNSEEDED else webdataset.detshuffle(16, seed=t.rank)
dataset = dataset.compose(shuffle).decode().to_tuple("txt").map_tuple(float).batched(4)
loader = webdataset.WebLoader(dataset, batch_size=None)
t.read(
    loader,
    lambda batch: torch.as_tensor(batch[0], dtype=torch.float32).reshape(-1, 1),
    passes=2,
    says=not UNSEEDED,  # no two runs are equal
)
