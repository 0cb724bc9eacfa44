"""The interpreter, and the taskd installed in it."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import taskd
from taskd.doctor.finding import Finding, error, ok, warning

OLDEST = (3, 10)  # pyproject.toml, requires-python


def interpreter(version: tuple[int | str, ...], platform: str) -> Finding:
    name, text = "python", ".".join(map(str, version[:3]))
    if platform != "linux":
        return error(
            name, f"{text} on {platform}", "taskd needs Linux: /dev/shm, pidfd, LD_PRELOAD"
        )
    if version[:2] < OLDEST:
        return error(name, text, "use Python 3.10 or later")
    return ok(name, text)


def package() -> Finding:
    """The imported taskd is the installed one."""
    name, where = "taskd", Path(taskd.__file__).parent
    try:
        noted = metadata.version("taskd")
    except metadata.PackageNotFoundError:
        remedy = "install its wheel with pip: the launcher must find it from any directory"
        return warning(name, f"{taskd.__version__} in {where}, not installed", remedy)
    if noted != taskd.__version__:
        remedy = "uninstall taskd until pip finds none, install its wheel again; check PYTHONPATH"
        return error(name, f"{where} has {taskd.__version__}, pip reports {noted}", remedy)
    return ok(name, f"{taskd.__version__} in {where}")
