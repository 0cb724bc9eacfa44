"""The directory that a node's ranks and their agent share: makes it, and removes those that killed
agents left behind."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from pathlib import Path

log = logging.getLogger("taskd.agent")

# bytes; records need ~100 kB a rank; stripes report a lack of room themselves
ROOM = 32 << 20


def make() -> Path:
    """Make a directory for one start of all ranks, in memory if there is room."""
    base = _roomy()
    _clear_away(Path(base or tempfile.gettempdir()))
    return Path(tempfile.mkdtemp(prefix=f"{_prefix()}{os.getpid()}-", dir=base))


def _roomy() -> str | None:
    """/dev/shm, or the directory for temporary files (None) where that is full or read-only."""
    try:
        found = os.statvfs("/dev/shm")
        free = found.f_bavail * found.f_frsize
        if os.access("/dev/shm", os.W_OK) and not found.f_flag & os.ST_RDONLY and free >= ROOM:
            return "/dev/shm"
        log.warning(
            "/dev/shm is read-only or has only %d MiB free: %s is used, which is slower",
            free >> 20,
            tempfile.gettempdir(),
        )
    except OSError as error:
        log.warning(
            "/dev/shm cannot be used (%s): %s is used, which is slower",
            error,
            tempfile.gettempdir(),
        )
    return None


def _prefix() -> str:
    """The prefix of names: the pid namespace of the agent, as containers may share /dev/shm."""
    return f"taskd-{os.stat('/proc/self/ns/pid').st_ino}-"


def _clear_away(base: Path) -> None:
    """Remove the directories of killed agents."""
    for directory in base.glob(f"{_prefix()}*"):
        pid = directory.name.removeprefix(_prefix()).partition("-")[0]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(directory, ignore_errors=True)
