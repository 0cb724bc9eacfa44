"""The directory that a node's ranks and their agent share: makes it, and removes those that killed
agents left behind.

An agent holds a lock on its directory (flock) until its process has ended, however it ends. So
whoever gets the lock of a directory may remove it, whatever container or pid namespace the agent
was in: in a container, the next agent often has the pid of the last one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger("taskd.agent")

SHARED = "/dev/shm"
# bytes; of the state page, keys, what a rank's start was, and where there are no memory files of
# records: these report a lack of room themselves
ROOM = 8 << 20
_NOEXEC_SEAL = 8  # MFD_NOEXEC_SEAL: asked for by the sysctl vm.memfd_noexec
# of the names; those of taskds that held no lock begin otherwise, and are never removed
_PREFIX = "taskd-job-"
# another agent may take a new directory for a dead one's before its lock is taken; chance does not
# repeat that
TRIES = 10


def make() -> tuple[Path, int]:
    """Make a directory for one start of all ranks, in memory if there is room. Returns it and its
    descriptor, which holds its lock. Raises OSError."""
    for place in dict.fromkeys((SHARED, tempfile.gettempdir())):
        _clear_away(Path(place))
    base = _roomy()
    for _ in range(TRIES):
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=base))
        if (lock := _locked(path)) is not None:
            return path, lock
    raise FileNotFoundError(errno.ENOENT, "another process removes it as it is made", str(path))


def remove(path: Path, lock: int, held: Iterable[int] = ()) -> None:
    """Remove a directory that `make` has made, and what `hold` has made for it."""
    shutil.rmtree(path, ignore_errors=True)
    for fd in (*held, *((lock,) if lock >= 0 else ())):
        os.close(fd)


def hold(path: Path, names: Iterable[str]) -> list[int]:
    """Make files in memory under these names in the directory, and return their descriptors: they
    exist as long as one of them is open, or mapped. They are in no mount, so that the size of
    /dev/shm does not bound them; a name leads to this process's descriptor. Where the kernel
    refuses, whoever writes a file first makes it in the directory."""
    held: list[int] = []
    for name in names:
        link = path / name
        try:
            fd = _memory_file(name)
        except OSError as error:
            log.warning("no memory file (%s): records are files in %s", error.strerror, path)
            break
        try:
            os.symlink(f"/proc/{os.getpid()}/fd/{fd}", link)
            os.close(os.open(link, os.O_RDWR | os.O_CLOEXEC))  # as the ranks will
        except OSError as error:
            log.warning("%s leads nowhere (%s): records are files in %s", link, error, path)
            os.close(fd)
            with contextlib.suppress(OSError):
                os.unlink(link)
            break
        held.append(fd)
    return held


def _memory_file(name: str) -> int:
    """A memory file that nobody can make shorter: who reads it is never hit by SIGBUS."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        fd = os.memfd_create(f"taskd-{name}", flags | _NOEXEC_SEAL)
    except OSError as error:
        if error.errno != errno.EINVAL:  # before Linux 6.3
            raise
        fd = os.memfd_create(f"taskd-{name}", flags)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    return fd


def vanished(path: Path, lock: int) -> str:
    """The sentence that says that somebody else has removed the directory; "" if it is there."""
    if lock < 0 or os.fstat(lock).st_nlink:
        return ""
    return (
        f"{path}, which this node's ranks and their agent share, was removed while they use it: by"
        " rm, or by systemd as its user logged out (RemoveIPC=no in logind.conf prevents that); no"
        " rank of this node can be replaced any more"
    )


def _roomy() -> str | None:
    """/dev/shm, or the directory for temporary files (None) where that is full or read-only."""
    try:
        found = os.statvfs(SHARED)
        free = found.f_bavail * found.f_frsize
        if os.access(SHARED, os.W_OK) and not found.f_flag & os.ST_RDONLY and free >= ROOM:
            return SHARED
        log.warning(
            "%s is read-only or has only %d MiB free: %s is used, which is slower. Enlarge it"
            " (docker: --shm-size; Kubernetes: an emptyDir of medium Memory at /dev/shm)",
            SHARED,
            free >> 20,
            tempfile.gettempdir(),
        )
    except OSError as error:
        log.warning(
            "%s cannot be used (%s): %s is used, which is slower",
            SHARED,
            error,
            tempfile.gettempdir(),
        )
    return None


def _locked(path: Path) -> int | None:
    """Take the lock of a directory, and return its descriptor; None if another process has it, or
    has removed the directory. Raises OSError where directories cannot be locked."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(folder).st_nlink:
            return folder
    except BlockingIOError:
        pass
    except BaseException:
        os.close(folder)
        raise
    os.close(folder)
    return None


def _clear_away(base: Path) -> None:
    """Remove this user's directories of agents that are gone."""
    for path in base.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another agent removes it too, or it is no directory
            found = path.lstat()
            if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
                continue
            if (lock := _locked(path)) is not None:
                remove(path, lock)
                log.info("removed %s, which an agent that is gone had left", path)
