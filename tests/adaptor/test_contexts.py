"""The launcher's command line as the journal has it: without anything that may be a secret."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from taskd.adaptor.contexts import command

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("argv", "entrypoint", "args", "shown"),
    [
        ("/v/bin/taskd run --nproc_per_node 4 train.py", PYTHON, "-u train.py",
         "taskd run --nproc_per_node 4 train.py"),
        ("torchrun -m pkg.train --key hunter2", PYTHON, "-u -m pkg.train --key hunter2",
         "torchrun -m pkg.train ..."),
        ("torchrun --nnodes=2 t.py --key hunter2", PYTHON, "-u t.py --key hunter2",
         "torchrun --nnodes=2 t.py ..."),
        ("torchrun --no-python ./run.sh hunter2", "./run.sh", "hunter2",
         "torchrun --no-python ./run.sh ..."),
        ("torchrun --rdzv-id=hunter2 --rdzv_conf password=hunter2 t.py", PYTHON, "-u t.py",
         "torchrun --rdzv-id=*** --rdzv_conf *** t.py"),
        # the launcher was started by something that has arguments of its own
        ("launch hunter2", PYTHON, "-u t.py --key hunter2", ""),
    ],
)  # fmt: skip
def test_command(argv, entrypoint, args, shown):
    spec = SimpleNamespace(entrypoint=entrypoint, args=tuple(args.split()))
    found = command(spec, argv.split())
    assert found.replace("'", "") == (
        "taskd run --nproc_per_node 4 train.py" if shown is None else shown
    )


def test_a_function_has_none():
    assert command(SimpleNamespace(entrypoint=print, args=("hunter2",)), ["torchrun", "x"]) == ""
