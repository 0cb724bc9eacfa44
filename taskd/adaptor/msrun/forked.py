"""The imports of the zygote of MindSpore's ranks, and how its fork becomes a rank: a replacement
saves the import, which takes a fresh interpreter 2 s."""

from __future__ import annotations

import importlib
import os

from taskd import raised
from taskd.adaptor.msrun import joining
from taskd.worker.process import replacement

FIRST = ("numpy",)  # OpenBLAS starts threads, and takes care of forks
WARM = ("mindspore", "mindspore.train", "mindspore.communication.management")


def warm() -> None:
    """Raises SystemExit where the import starts threads, as it may with a device: a fork would not
    have them, and could hang. msrun starts the replacements then."""
    for name in FIRST:
        importlib.import_module(name)
    before = _threads()
    for name in WARM:
        importlib.import_module(name)
    # by their ids: one that ends meanwhile would hide one in a count
    if more := _threads() - before:
        raise SystemExit(
            f"taskd: importing mindspore has started {len(more)} threads: ranks cannot be forked"
            " after it, and msrun starts their replacements"
        )


def _threads() -> set[str]:
    return set(os.listdir("/proc/self/task"))


def run(command: list[str], launcher: int) -> None:
    """Run the script as the rank's first process did. `launcher`: its pidfd."""
    raised.offer()
    replacement.launcher = launcher
    joining.attach()
    replacement.run(command, groups=False)
