"""/dev/shm, which holds a node's state page and the copy of the training state."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from taskd import settings
from taskd.agent.shared_memory import ROOM
from taskd.doctor.finding import Finding, ok, warning

PLACE = Path("/dev/shm")
MOUNTS = Path("/proc/self/mountinfo")
# bytes; stripes are twice parameters and optimizer state: 1 GiB fits a model of some 40 million
# parameters with Adam
STRIPES = 1 << 30
LARGER = "enlarge it (docker: --shm-size; Kubernetes: an emptyDir with medium: Memory)"


def room(environ: Mapping[str, str], place: Path = PLACE, mounts: Path = MOUNTS) -> Finding:
    """/dev/shm has room. Nothing here is fatal: the agent falls back to the temporary directory,
    and a job without stripes is protected with less."""
    name = "shared memory"
    instead = f"{tempfile.gettempdir()} is used, which is slower"
    if not place.is_dir():
        return warning(name, f"{place} does not exist: {instead}", f"mount a tmpfs at {place}")
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            os.posix_fallocate(file.fileno(), 0, 1)
    except OSError as problem:
        if problem.errno == errno.ENOSPC:
            return warning(
                name, f"{place} is full: {instead}", f"remove what fills it, or {LARGER}"
            )
        return warning(
            name,
            f"{place} cannot be written to ({problem.strerror}): {instead}",
            f"mount it writable, with mode 1777: {place}",
        )
    kind = file_system(place, mounts)
    if kind != "tmpfs":
        return warning(
            name,
            f"{place} is {kind or 'of an unknown kind'}, not tmpfs: slower, and on a disk",
            f"mount a tmpfs at {place}",
        )
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < ROOM:
        return warning(
            name, f"{place} has {_size(free)} free, and {_size(ROOM)} are needed: {instead}", LARGER
        )
    if not settings.stripes(environ):
        return ok(name, f"{place} has {_size(free)} free, and stripes are off")
    if free < STRIPES:
        text = (
            f"{place} has {_size(free)} free; stripes keep a copy of the training state there,"
            " twice parameters and optimizer state"
        )
        return warning(
            name,
            text,
            f"{LARGER}; or do without the copy, TASKD_STRIPES=off: a fault after the update then"
            " cannot be undone",
        )
    return ok(name, f"{place} has {_size(free)} free, for stripes of twice the training state")


def file_system(place: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system that `place` is on; None: its mount is not listed."""
    place, best, kind = place.resolve(), -1, None
    for line in mounts.read_text(errors="surrogateescape").splitlines():
        # proc(5): ..., the mount point is the fifth field, the kind the first after the dash;
        # blanks are written \040
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].replace("\\040", " "))
        # the last mount on a point covers the others
        if (place == point or point in place.parents) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split()[0]
    return kind


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"
