"""Whether what a launcher is to start is there. Otherwise every rank fails, is started again, and
the reason drowns in tracebacks."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec

from taskd.settings import here


def refusal(program: str, arguments: Sequence[str]) -> str:
    """Why a program with these arguments cannot run here; "" if it may. Nothing is imported."""
    named = bool(os.path.dirname(program))
    if not (here.may(program, os.X_OK) if named else shutil.which(program)):
        return f"there is no program {program} that this user can run: correct its name"
    if arguments[:1] != ("-u",):  # how torchrun starts Python
        return ""
    what = arguments[1:3]
    if what[:1] != ("-m",):
        return _file(what[0]) if what and not what[0].startswith("-") else ""
    if len(what) < 2:
        return "-m names no module"
    return _module(what[1]) if program == sys.executable else ""


def _file(path: str) -> str:
    if not os.path.exists(path):
        return f"there is no script {path} in {os.getcwd()}: correct its name"
    if os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__main__.py")):
        return f"{path} is a directory without a __main__.py: name a script"
    if not here.may(path, os.R_OK):
        return f"the script {path} cannot be read by this user: chmod +r {path}"
    return ""


def _module(name: str) -> str:
    missing = f"there is no module {name}: correct -m, or install it"
    path: list[str] | None = None
    above: ModuleSpec | None = None
    with _from_here():
        parts = name.split(".")
        for count in range(1, len(parts) + 2):
            # at last, a package is run by its module __main__
            if count > len(parts):
                if path is None:
                    return ""
                missing = f"the package {name} has no module __main__: name a module of it"
            try:
                found = _found(".".join([*parts, "__main__"][:count]), path)
                if found is None:
                    return "" if _extends(above) else missing
                locations = found.submodule_search_locations
                if locations is None and count < len(parts):
                    return f"{missing}; {'.'.join(parts[:count])} is no package"
                above, path = found, None if locations is None else list(locations)
            except Exception:  # a finder of someone else's; a package within a namespace
                return ""
    return ""


@contextmanager
def _from_here() -> Iterator[None]:
    """With -m, Python looks in the working directory first."""
    before = list(sys.path)
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path[:] = before


def _found(name: str, path: list[str] | None) -> ModuleSpec | None:
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, path, None)) is not None:
            return spec
    return None


def _extends(package: ModuleSpec | None) -> bool:
    """Whether the package may have modules elsewhere, which it finds when it is imported."""
    if package is None:
        return False
    if not package.has_location or package.origin is None:
        return True
    with open(package.origin, "rb") as file:
        return b"__path__" in file.read()
