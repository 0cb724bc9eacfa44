"""How a replacement runs the user's script up to the point where its predecessor was.

The script asks for a process group that its peers have long left; it gets one of torch's fake backend, in which it has its rank and
the world its size, and every collective returns at once. What the setup computed by collectives is overwritten by the repair.
When the loop is reached, the real communicators take its place.
"""

from __future__ import annotations

import os
import runpy
import sys
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from taskd.worker.communicators import Communicators

_asked: dict[str, Any] = {}  # the arguments of the script's init_process_group


def active() -> bool:
    """Whether this process is a replacement."""
    return os.environ.get("TASKD_INCARNATION", "0") != "0"


def communicators() -> Communicators:
    """The communicators that the script asked for, not made yet."""
    timeout = _asked.get("timeout")
    return Communicators.remembered(
        int(os.environ["RANK"]),
        int(os.environ["WORLD_SIZE"]),
        _asked.get("backend"),
        timeout if isinstance(timeout, timedelta) else None,
    )


def stand_in() -> None:
    """From here on init_process_group() in this process makes a fake group. Idempotent."""
    if _asked:
        return
    _asked.update(backend=None, timeout=None)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    original = dist.init_process_group

    def init_process_group(
        backend: str | None = None, init_method: str | None = None, timeout: timedelta | None = None, **rest: Any
    ) -> None:
        _asked.update(backend=backend, timeout=timeout)
        # from here on the real one again: it is the repair that calls it next
        dist.init_process_group = c10d.init_process_group = original
        original("fake", store=FakeStore(), rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))

    dist.init_process_group = c10d.init_process_group = init_process_group  # type: ignore[assignment]


def run(command: list[str]) -> None:
    """Run the script as `python script.py args…` or `python -m module args…` would. `command` is what follows the interpreter."""
    stand_in()
    arguments = [a for a in command if a != "-u"]
    if arguments and arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":  # without a zygote: python -m taskd.worker.replacement script.py args…
    sys.path.pop(0)
    # this file is loaded twice here, and what init_process_group was asked for is kept in the other one
    from taskd.worker import replacement

    replacement.run(sys.argv[1:])
