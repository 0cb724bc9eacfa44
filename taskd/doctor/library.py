"""libtaskd.so: whether it loads, has this version, and gets into the ranks."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import taskd
from taskd import settings
from taskd.cython_api import library_path
from taskd.doctor.asking import NoAnswer, ask
from taskd.doctor.finding import Finding, error, ok, warning

LIMIT = 10.0  # seconds; an interpreter without site-packages starts in 20 ms
PROBE = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
if not hasattr(library, "taskd_version"):
    sys.exit("it has no version: it was built with an older taskd")
library.taskd_version.restype = ctypes.c_char_p
print(library.taskd_preloaded(), library.taskd_version().decode())
"""
BUILD = "install taskd again (in a working tree: make build)"


def _probe(path: Path, environ: Mapping[str, str]) -> list[str]:
    """Preload it into an interpreter of its own, as in the ranks: [whether it is preloaded, its
    version]."""
    present = environ.get("LD_PRELOAD", "")
    preloaded = {**environ, "LD_PRELOAD": ":".join(p for p in (str(path), present) if p)}
    return ask(PROBE, str(path), environ=preloaded, limit=LIMIT, flags=("-I", "-S")).split()


def loads(
    path: Path | None = None, *, environ: Mapping[str, str], version: str = taskd.__version__
) -> Finding:
    name, path = "libtaskd", path or Path(library_path())
    if not path.is_file():
        return error(name, f"{path} does not exist", BUILD)
    try:
        found = _probe(path, environ)[1]
    except NoAnswer as problem:
        return error(name, f"{path} is unusable: {problem}", BUILD)
    if found != version:
        return error(name, f"{path} has version {found}, taskd has {version}", BUILD)
    return ok(name, f"{found} in {path}")


def preload(environ: Mapping[str, str], path: Path | None = None) -> Finding:
    """The library is in LD_PRELOAD, or the agent can preload it."""
    name, path = "preload", path or Path(library_path())
    # the dynamic linker accepts colons and spaces
    for entry in re.split("[: ]+", environ.get("LD_PRELOAD", "")):
        if os.path.basename(entry) != path.name:
            continue
        if not os.path.exists(entry):
            return error(
                name,
                f"LD_PRELOAD names {entry}, which does not exist",
                f"export LD_PRELOAD={path}, or unset it",
            )
        if not path.exists() or not os.path.samefile(entry, path):
            return error(
                name,
                f"LD_PRELOAD names {entry}, which is not this taskd's",
                f"export LD_PRELOAD={path}, or unset it",
            )
        return ok(name, f"{path.name} is in LD_PRELOAD")
    if not settings.preload(environ):
        text = (
            "off by TASKD_PRELOAD: reasons of exits are not recorded, and a lost page of an"
            " activation ends its rank"
        )
        return warning(name, text, "unset TASKD_PRELOAD")
    try:
        works = _probe(path, environ)[0] == "1"
    except NoAnswer as problem:
        return error(name, f"it cannot be preloaded: {problem}", BUILD)
    if not works:
        return error(
            name,
            "the dynamic linker does not preload it into this Python",
            "use a Python that is dynamically linked to libc",
        )
    return ok(name, "the agent puts it into the ranks' LD_PRELOAD")
