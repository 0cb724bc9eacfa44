"""Importing a trainer takes longer than a repair. The process that ranks are forked from (the
zygote, agent/ranks/zygote.py) has done it already where the script's file imports one, or taskd's
integration of it; but not where the script sets variables, which libraries read as they are
imported.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder

# a trainer's package -> what a script with it takes longest for
IMPORTS = {"lightning": ("lightning.pytorch",), "transformers": ("transformers.trainer",)}
VARIABLE = "TASKD_TRAINERS"  # of the zygote: packages, separated by commas
_NAMES = rb"^[ \t]*(?:from|import)[ \t]+(?:taskd\.integrations(?:\.| import ))?(\w+)"
_SETS = rb"environ(?:\[[^]]*\]\s*=[^=]|\.(?:setdefault|update|pop)\b)|putenv"
LARGEST = 1 << 20  # bytes of a script that is searched


def named(arguments: Iterable[str]) -> str:
    """The trainers that a program's file imports, as in VARIABLE. `arguments`: its command."""
    text = b""
    with contextlib.suppress(OSError), open(_file(arguments), "rb") as file:
        text = file.read(LARGEST)
    if b"taskd" not in text or re.search(_SETS, text):
        return ""
    found = {name.decode() for name in re.findall(_NAMES, text, re.MULTILINE)}
    return ",".join(sorted(found & IMPORTS.keys()))


def _file(arguments: Iterable[str]) -> str:
    """Of the program: of its first argument that is one, or of the module after -m."""
    before = ""
    for argument in arguments:
        if before == "-m":
            return _module(argument)
        if argument.endswith(".py"):
            return argument
        before = argument
    return ""


def _module(name: str) -> str:
    """The file of a module, which is found without an import of the packages that it is in."""
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    found: ModuleSpec | None = None
    for end in range(1, name.count(".") + 2):
        full = ".".join(name.split(".")[:end])
        found = PathFinder.find_spec(full, places) if places else None
        places = found.submodule_search_locations if found is not None else None
    if places:  # a package: its __main__
        found = PathFinder.find_spec(f"{name}.__main__", places)
    return (found and found.origin) or ""


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
