"""The memory of this node that records may take, and taking it.

A file in memory is charged to the container like the memory of a process, so a record that takes
the last of it would have the kernel kill a rank. Memory is therefore asked for before it is taken,
by one process of the node at a time, and some of it is left to the training.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# bytes; less than this is taken without a look, which costs 0.1 ms
SMALL = 1 << 20
# what is left to the training, whose own memory rises and falls: this share of the limit, at most
# `LEFT` bytes
SHARE, LEFT = 1 / 32, 1 << 30
MORE = "more memory (docker: --memory; Kubernetes: resources.limits.memory)"
REMEDY = (
    f"Give the container {MORE}; files of records can be in /dev/shm too (docker: --shm-size;"
    " Kubernetes: an emptyDir of medium Memory)"
)
TRIES, PAUSE = 100, 0.01  # to lock, seconds between two
_UNLIMITED = 1 << 60  # a limit above it is none: version 1 says so with a number


@dataclass(frozen=True)
class Room:
    """What a node, or the container, has: `limit` and `free` in bytes, and whose limit it is."""

    limit: int
    free: int
    whose: str

    @property
    def spare(self) -> int:
        """Bytes that records may take."""
        return max(self.free - min(int(self.limit * SHARE), LEFT), 0)

    def lacks(self, size: int, claimed: int = 0) -> str:
        """Why `size` bytes are not taken; "" if they may be. `claimed`: what others are about to
        take, too."""
        if size + claimed <= self.spare:
            return ""
        beside = f" beside {mib(claimed)} for others," if claimed else ""
        return (
            f"it takes {mib(size)},{beside} and {self.whose} has {mib(self.free)} free of"
            f" {mib(self.limit)}, of which {mib(self.free - self.spare)} stay free for the training"
        )


def mib(size: int) -> str:
    return f"{-(-size >> 20)} MiB"


def of_node(root: Path = Path("/")) -> Room | None:
    """What is free now, by the limit that is nearest: the machine's memory, or that of a control
    group above this process. None where the kernel does not say. `root`: of the files read."""
    found = [room for room in (_machine(root), *_groups(root)) if room is not None]
    return min(found, key=lambda room: room.free, default=None)


def reserve(fd: int, directory: Path, size: int) -> None:
    """Have the first `size` bytes of a file in memory. `directory`: the node's shared one. Raises
    OSError: ENOMEM where the node has not as much, else what the kernel says."""
    found = os.fstat(fd)
    if (more := size - found.st_blocks * 512) < SMALL:
        os.posix_fallocate(fd, 0, size)
        return
    claims = Claims(directory)
    claims.claim(more)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        claims.claim(0)


class Claims:
    """What processes of the node are about to take, so that no two count on the same memory: a
    file in the node's shared directory, with lines of a process and its bytes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "room"

    def claim(self, size: int) -> None:
        """State what this process is about to take; 0: it has taken it. Raises OSError(ENOMEM) if
        the node has not as much. Where the file cannot be written, nobody knows of the others."""
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            self._check(size)
            return
        try:
            _lock(fd)
            mine, others = str(os.getpid()), dict[str, int]()
            for line in os.pread(fd, 1 << 20, 0).decode(errors="replace").splitlines():
                pid, _, claimed = line.partition(" ")
                if pid.isdigit() and claimed.isdigit() and pid != mine and _lives(int(pid)):
                    others[pid] = int(claimed)
            self._check(size, sum(others.values()))
            lines = [f"{pid} {claimed}\n" for pid, claimed in others.items()]
            lines += [f"{mine} {size}\n"] if size else []
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, "".join(lines).encode(), 0)
        finally:
            os.close(fd)

    @staticmethod
    def _check(size: int, claimed: int = 0) -> None:
        if size and (room := of_node()) is not None and (why := room.lacks(size, claimed)):
            raise OSError(errno.ENOMEM, why)


def _lock(fd: int) -> None:
    """Lock a file that others hold for a millisecond; one that is stopped then is not waited
    for."""
    for _ in range(TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        # flock has no deadline; who holds it reads and writes a line
        time.sleep(PAUSE)


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def _machine(root: Path) -> Room | None:
    values = _pairs(root / "proc/meminfo")
    if "MemAvailable:" not in values:
        return None
    free = values["MemAvailable:"] << 10
    return Room(values.get("MemTotal:", 0) << 10, free, "the machine")


def _groups(root: Path) -> Iterator[Room]:
    """The limits of the control groups of this process, of version 2 and of version 1."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            base, files = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # in a container the group's own name may be that of the host, and its files at the top
        at = base / name.lstrip("/")
        for group in dict.fromkeys((at, *at.parents, base)):
            if group.is_relative_to(base) and (room := _group(group, *files)) is not None:
                yield room


def _group(group: Path, limit: str, usage: str, cache: str) -> Room | None:
    most, used = _number(group / limit), _number(group / usage)
    if most is None or used is None or most >= _UNLIMITED:
        return None
    # what was read from files and is not in use is given back before anything is refused
    free = most - used + _pairs(group / "memory.stat").get(cache, 0)
    return Room(most, max(free, 0), "the container (its control group)")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # "max"
        return None


def _pairs(path: Path) -> dict[str, int]:
    """Lines of a name and a number."""
    found: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for line in path.read_text().splitlines():
            name, _, rest = line.partition(" ")
            number = rest.split(None, 1)[:1]
            if number and number[0].isdigit():
                found[name] = int(number[0])
    return found
