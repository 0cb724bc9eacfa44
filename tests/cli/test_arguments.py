"""Options of `taskd run` between those of torchrun; what follows the script is the script's."""

from __future__ import annotations

import pytest

from taskd.cli import arguments, run

OPTIONS = [p for p in run.command.params if hasattr(p, "is_flag")]


@pytest.mark.parametrize(
    ("given", "first"),
    [
        ("--nproc_per_node 4 --port 9700 train.py", "--port 9700 --nproc_per_node 4 train.py"),
        (
            "--nproc-per-node=4 --recover-strategy=retry --standby -m pkg",
            "--recover-strategy=retry --standby --nproc-per-node=4 -m pkg",
        ),
        (
            "--nproc_per_node 2 --port 1 train.py --port 2 --standby",
            "--port 1 --nproc_per_node 2 train.py --port 2 --standby",
        ),
        ("--nnodes 2 train.py --port 2", "--nnodes 2 train.py --port 2"),
        (
            "--standalone --log-path logs --no-python run.sh --log-path x",
            "--log-path logs --standalone --no-python run.sh --log-path x",
        ),
    ],
)
def test_own_options_come_first(given, first):
    assert arguments.own_first(given.split(), OPTIONS) == first.split()


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("--port 9700 --nproc_per_node 4 train.py", False),
        ("--nproc_per_node 4 train.py --lr 1", False),
        ("--nproc_per_node 4 --port 1 train.py", True),
    ],
)
def test_torch_is_asked_where_that_is_needed(given, asked):
    assert arguments._own_come_later(given.split(), OPTIONS) is asked
