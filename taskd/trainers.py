"""Importing a trainer takes longer than a repair. The process that ranks are forked from (the
zygote, agent/ranks/zygote.py) has done it already where the script's file names the integration.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

# integration -> what its import, and that of a script with such a trainer, takes longest for
IMPORTS = {"lightning": ("lightning.pytorch",), "transformers": ("transformers.trainer",)}
VARIABLE = "TASKD_TRAINERS"  # of the zygote: integrations, separated by commas
LARGEST = 1 << 20  # bytes of a script that is searched


def named(arguments: Iterable[str]) -> str:
    """The integrations that a program's file names, as in VARIABLE. `arguments`: its command."""
    for argument in arguments:
        if argument.endswith(".py"):
            with contextlib.suppress(OSError), open(Path(argument), "rb") as file:
                text = file.read(LARGEST).decode(errors="replace")
                found = set(re.findall(r"taskd\.integrations(?:\.| import )(\w+)", text))
                return ",".join(sorted(found & IMPORTS.keys()))
    return ""


def warm() -> None:
    """In the zygote: import the trainers."""
    for name in os.environ.pop(VARIABLE, "").split(","):
        for module in IMPORTS.get(name, ()):
            with contextlib.suppress(ImportError):
                importlib.import_module(module)


def forked() -> None:
    """In a fork: Lightning has noted the zygote's rank as it was imported."""
    if rank_zero := sys.modules.get("lightning_utilities.core.rank_zero"):
        rank_zero.rank_zero_only.rank = int(os.environ["RANK"])
