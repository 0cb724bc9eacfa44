"""Hugging Face datasets: a streamed set with a shuffle buffer, split by rank, with two workers.

Needs: datasets==5.2.0
"""

from datasets import Dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader
from training import Training

t = Training()
rows = Dataset.from_dict({"x": [float(n) for n in range(256)]}).to_iterable_dataset(num_shards=8)
rows = split_dataset_by_node(rows.shuffle(seed=3, buffer_size=32), t.rank, t.world)
loader = DataLoader(rows.with_format("torch"), batch_size=4, num_workers=2)
t.read(loader, lambda batch: batch["x"].float().reshape(-1, 1))
