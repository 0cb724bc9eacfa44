"""What real training loops have: epochs over shuffling loaders, augmentation, accumulation, a
scaler, an EMA copy, several optimizers."""

from __future__ import annotations

import pytest
import training


@pytest.mark.parametrize(
    "kind",
    [
        *("workers", "counting", "steered", "asked"),
        *training.long("distributed", "random", "synced", "stateful", "own"),
    ],
)
def test_epochs_over_a_shuffling_loader(tmp_path, reference, kind):
    """12 batches an epoch on 2 ranks (24 with shuffle=True): faults at the first and last batch,
    inside, and between the passes."""
    per_epoch = 12 if kind == "distributed" else 24
    moments = [
        (0, "begin"),
        (5, "tail"),
        (per_epoch - 1, "tail"),
        (per_epoch, "begin"),
        (per_epoch + 4, "between"),
        (2 * per_epoch - 1, "between"),
    ]
    faults = (
        ",".join(f"{i % 2}:{step}:{point}:kill" for i, (step, point) in enumerate(moments))
        + ",1:0:epoch:kill,0:1:epoch:segv"
    )
    result = training.taskd(tmp_path / "job", 2, "loader.py", kind, "3", faults=faults)
    training.assert_equal(result, reference(2, "loader.py", kind, "3"), 2)


@pytest.mark.parametrize("kind", ["stateful", *training.long("own")])
def test_a_loader_with_a_state_is_moved(tmp_path, reference, kind):
    """Not drawn from its beginning; and a survivor, whose loader is given to protect(), is not
    moved."""
    faults = "1:20:begin:kill,0:23:tail:kill,1:40:between:kill"
    result = training.taskd(tmp_path / "job", 2, "loader.py", kind, "3", faults=faults)
    training.assert_equal(result, reference(2, "loader.py", kind, "3"), 2)
    for rank in range(2):
        drawn: dict[str, list[int]] = {}
        for line in (tmp_path / "job" / f"drawn-{rank}").read_text().splitlines():
            pid, batch = line.split()
            drawn.setdefault(pid, []).append(int(batch))
        begins = [batches[0] for batches in drawn.values()]
        # where a replacement begins depends on how far the others were: a step or two before
        assert begins[0] == 0 and all(begin > 10 for begin in begins[1:]), drawn
        for batches in drawn.values():
            assert batches == [(batches[0] + n) % 24 for n in range(len(batches))], drawn


@pytest.mark.parametrize("kind", ["counting", "again", "noted"])
def test_what_scripts_write_to_get_data_from(tmp_path, reference, kind):
    faults = "1:5:begin:kill,0:11:tail:kill,1:17:begin:kill,1:21:tail:kill"
    result = training.taskd(tmp_path / "job", 2, "sources.py", kind, "3", faults=faults)
    training.assert_equal(result, reference(2, "sources.py", kind, "3"), 2)


def test_a_loader_that_cannot_be_taken_up_exactly_is_told_of(tmp_path):
    result = training.taskd(tmp_path / "job", 2, "loader.py", "hidden", "1", faults="1:5:tail:kill")
    assert result.status == 1
    assert "DataLoader gave a different batch for step" in result.output


def test_a_later_pass_that_begins_elsewhere_ends_the_job(tmp_path):
    """The replacement's sampler goes another way a pass later than the others'."""
    result = training.taskd(tmp_path / "job", 2, "loader.py", "later", "5", faults="1:50:tail:kill")
    assert result.status == 1 and "rank 1 replaced in" in result.output, result.output[-3000:]
    assert "has not the same first batch on all ranks, as the 3 passes before" in result.output
    assert "the pass that begins with step 72" in result.output


def test_accumulation_scaler_average_and_two_optimizers(tmp_path, reference):
    moments = [
        (1, "accumulating"),
        (3, "between-optimizers"),
        (5, "tail"),
        (6, "accumulating"),
        (7, "begin"),
        (9, "ema"),
        (11, "backward"),
    ]
    faults = ",".join(f"{i % 3}:{step}:{point}:kill" for i, (step, point) in enumerate(moments))
    result = training.taskd(tmp_path / "job", 3, "rich.py", "14", faults=faults)
    training.assert_equal(result, reference(3, "rich.py", "14"), 3)


def test_deaths_around_the_ends_of_passes(tmp_path, reference):
    """Survivors that stand before the first step of a pass, or between two steps, when another
    dies: what they have drawn stays drawn."""
    moments = (
        "0:1:pass:nap0.3 1:3:begin:kill",
        "0:2:pass-drawn:nap0.3 2:2:pass:kill",
        "1:3:pass-drawn:nap0.3 0:9:begin:kill",
        "2:4:pass:nap0.3 1:4:pass-drawn:kill",
        "0:13:between:nap0.3 2:14:begin:kill",
        "1:16:between-drawn:nap0.3 0:17:begin:kill",
        "0:6:pass:nap0.3 1:6:pass:nap0.3 2:18:begin:kill",
        "1:7:pass-drawn:nap0.3 2:7:pass-drawn:nap0.3 0:21:begin:kill",
        "0:25:between:nap0.3 1:25:between:kill",
        "2:27:between:nap0.3 1:28:begin:kill",
        "0:10:pass:nap0.3 1:29:tail:kill",
    )
    result = training.taskd(
        tmp_path / "job", 3, "passes.py", "11", faults=",".join(moments).replace(" ", ",")
    )
    training.assert_equal(result, reference(3, "passes.py", "11"), 3)
    assert [len(result.pids(rank)) - 1 for rank in range(3)] == [3, 5, 3]
