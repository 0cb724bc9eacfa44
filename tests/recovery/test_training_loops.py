"""What real training loops have: epochs over shuffling loaders, augmentation, accumulation, a scaler, an EMA copy, several optimizers."""

from __future__ import annotations

import pytest
import training


@pytest.mark.parametrize("kind", ["distributed", "random"])
def test_epochs_over_a_shuffling_loader(tmp_path, reference, kind):
    """12 batches an epoch on 2 ranks (24 with shuffle=True): faults at the first and last batch, inside, and between the passes."""
    per_epoch = 12 if kind == "distributed" else 24
    moments = [
        (0, "begin"),
        (5, "tail"),
        (per_epoch - 1, "tail"),
        (per_epoch, "begin"),
        (per_epoch + 4, "between"),
        (2 * per_epoch - 1, "between"),
    ]
    faults = ",".join(f"{i % 2}:{step}:{point}:kill" for i, (step, point) in enumerate(moments)) + ",1:0:epoch:kill,0:1:epoch:segv"
    result = training.taskd(tmp_path / "job", 2, "loader.py", kind, "3", faults=faults)
    training.assert_equal(result, reference(2, "loader.py", kind, "3"), 2)


def test_accumulation_scaler_average_and_two_optimizers(tmp_path, reference):
    moments = [(1, "accumulating"), (3, "between-optimizers"), (5, "tail"), (6, "accumulating"), (7, "begin"), (9, "ema"), (11, "backward")]
    faults = ",".join(f"{i % 3}:{step}:{point}:kill" for i, (step, point) in enumerate(moments))
    result = training.taskd(tmp_path / "job", 3, "rich.py", "14", faults=faults)
    training.assert_equal(result, reference(3, "rich.py", "14"), 3)
