"""A loader that is taken up in the middle of a pass."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader

from taskd.worker import loading

DATA = list(range(12))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
def test_the_passes_after_it_are_whole(workers, persistent):
    """Persistent workers keep the sampler that the first pass began with."""
    loader = DataLoader(DATA, 3, num_workers=workers, persistent_workers=persistent and workers > 0)
    rest = [batch.tolist() for batch in loading.begin(loader, 2)]
    assert rest == [[6, 7, 8], [9, 10, 11]]
    assert [batch.tolist() for batch in loader] == torch.tensor(DATA).reshape(4, 3).tolist()
