"""Loops of a script's own with what Lightning's Fabric has set up."""

from __future__ import annotations

from pathlib import Path

import pytest
import training
from lightning.fabric import wrappers
from torch.utils.data import DataLoader

from taskd.worker.state import fabric
from taskd.worker.state.wrappers import KNOWN

SCRIPT = Path(__file__).parent / "scripts/fabric_loop.py"
FAULTS = (
    "0:0:begin:kill",
    "1:1:backward:kill",
    "0:2:backward:kill",  # in the middle of an accumulation
    "1:5:tail:kill",  # the last batch of an epoch
    "0:6:begin:kill",
    "1:7:begin:kill",  # the first batch of an epoch, where its end is a step
    "1:9:tail:kill",
    "0:13:begin:kill",
)


@pytest.mark.parametrize("kind", ["batches", *training.long("calls", "workers", "sharded")])
def test_bit_for_bit(tmp_path, reference, kind):
    job = tmp_path / "job"
    result = training.begin(job, 2, str(SCRIPT), str(job), kind, faults=",".join(FAULTS))
    with result as job:
        training.assert_equal(job.end(), reference(2, str(SCRIPT), kind), 2)


def test_names_of_fabric_that_are_not_public():
    for place, name in (*KNOWN, *fabric.KINDS):
        if place == "lightning.fabric.wrappers":
            assert hasattr(wrappers, name), name
    loader = DataLoader([1, 2])
    made = wrappers._FabricDataLoader(loader)
    assert fabric.is_loader(made) and fabric.inside(made) is loader
    assert list(fabric.begin(made, lambda inner: iter(inner.dataset))) == [1, 2]
    assert made._num_iter_calls == 1 and made._device is None
