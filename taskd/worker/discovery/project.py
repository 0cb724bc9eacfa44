"""Distinguishes files and modules of the user's program from installed ones."""

from __future__ import annotations

import itertools
import os
import site
import sys
import sysconfig
import types
from functools import cache
from pathlib import Path
from typing import Any

# also if they are installed in place, outside site-packages
_OURS = {"taskd", "torch", "numpy"}


def _installed() -> tuple[str, ...]:
    """Directories of what is installed: the standard library, packages, taskd."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_paths()[name] for name in names]
    found += [*site.getsitepackages(), site.getusersitepackages()]
    found.append(str(Path(__file__).parents[2]))
    return tuple({f"{p}{os.sep}" for path in found for p in (path, os.path.realpath(path))})


_INSTALLED = _installed()  # in the zygote: it takes 5 ms


@cache
def is_project(path: str) -> bool:
    """Whether `path` belongs to the user's program."""
    whole = os.path.abspath(path)
    try:
        whole.encode()
    except UnicodeEncodeError:  # it could not be noted
        return False
    installed = f"{whole}{os.sep}".startswith(_INSTALLED)
    return not installed and not {"site-packages", "dist-packages"} & {*whole.split(os.sep)}


def is_own(name: str, module: Any) -> bool:
    """Whether the user wrote this module."""
    if name == "__main__":
        return True
    if type(module) is not types.ModuleType or name.partition(".")[0] in _OURS:
        return False
    file = module.__dict__.get("__file__")
    return isinstance(file, str) and file[:1] != "<" and is_project(file)


_STRANGE = {"torch", "taskd", "numpy", *sys.stdlib_module_names} - {"__main__"}


ANY = "*"  # for `library`: libraries hold objects of others
# but not into these: what they show, and where they are in their own loops, is each process's own
# (integrations/ and holders.py restore what counts)
_SHOWN = {
    *("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "transformers"),
    *("mlflow", "rich", "tensorboardX", "tqdm", "wandb"),
}


def is_looked_into(module: str, library: str) -> bool:
    first = module.partition(".")[0]
    theirs = library in (first, ANY) and first not in _STRANGE
    if library == ANY and first in _SHOWN:
        return False
    return theirs or is_own(module, sys.modules.get(module))


def own_modules() -> list[tuple[str, dict[str, Any]]]:
    """The script's own modules."""
    main = sys.modules.get("__main__")
    roots = [("", vars(main))] if main is not None else []
    found = (row for row in (*_own, *new_modules()) if row[0] != "__main__" and is_own(*row))
    return roots + [(name, vars(module)) for name, module in found]


def new_modules() -> list[tuple[str, Any]]:
    """All modules; in a fork only those that the zygote had not loaded. Touching the others would
    copy the memory pages that they share with it."""
    # without bytecode, so that no thread imports meanwhile
    later = list(itertools.takewhile(_last.__ne__, reversed(sys.modules)))
    return [(name, sys.modules.get(name)) for name in reversed(later)]


def know_modules() -> None:
    """Called by the zygote, which has loaded what it will load."""
    global _last, _own
    _own = [row for row in new_modules() if is_own(*row)]
    _last = next(reversed(sys.modules))


_last = ""  # of the zygote's modules
_own: list[tuple[str, Any]] = []  # the script's own among them
