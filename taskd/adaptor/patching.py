"""Puts taskd's import into an installed torch and removes it: the file side of `run_py`.

The file is replaced atomically, so that a concurrent import reads the old text or the new one. A
lock on the directory, which leaves nothing behind, admits one process at a time. If the new file
does not import, the old one is restored.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from taskd.adaptor import run_py
from taskd.adaptor.run_py import Refused

# seconds; `import torch.distributed.run` takes 2 to 10, from a cold network disk a minute
IMPORT_LIMIT = 120.0
LOCK_LIMIT = 2 * IMPORT_LIMIT + 60  # the holder of the lock imports at most twice
MAX_BYTES = 4 << 20  # torch 2.13's has 33 kB; a larger file is not torchrun
# always the same name, so that the next process replaces what a killed one left
FRESH = ".run.py.taskd"

# Imports what the launcher imports and checks what it needs. On failure torch's own error is shown.
_PROBE = f"""
import os, sys
# the working directory: a module in it must not shadow one of torch's
sys.path[:1] = [p for p in sys.path[:1] if p]
import torch.distributed.run as run
if not os.path.samefile(run.__file__, sys.argv[1]):
    sys.exit(f"another torch is imported: {{run.__file__}}")
if {run_py.MODULE!r} not in sys.modules:
    sys.exit("it is imported, but {run_py.MODULE} is not")
from torch.distributed.launcher import api
from taskd.adaptor.torch_elastic import TaskdElasticAgent
if api.LocalElasticAgent is not TaskdElasticAgent:
    sys.exit("torch's launcher does not make taskd's agent")
"""


class NotVerified(RuntimeError):
    """The patched file does not work; the text says why. The file is as it was before."""


def find(site: Path | None = None) -> Path:
    """Find torch/distributed/run.py of the torch in the directory `site` (a site-packages), by
    default this Python's. Imports nothing. Raises Refused."""
    if site is None:
        try:
            spec = importlib.util.find_spec("torch")
        except (ImportError, ValueError):
            spec = None
        places = list(spec.submodule_search_locations or ()) if spec is not None else []
        if not places:
            raise Refused(
                f"{sys.executable} has no torch: install it, or name the directory that holds it"
                " with --torch"
            )
        site = Path(places[0]).parent
    return site.absolute() / "torch" / "distributed" / "run.py"


def status(path: Path) -> run_py.Reading:
    """Read the file. Raises Refused, also if the import cannot be inserted."""
    content = _content(path)
    run_py.installed(content)
    return _torchrun(content)


def install(path: Path, site: Path | None = None) -> bool:
    """Insert the import and verify that it works; False: it was already there and works. `site`:
    prepended to the module path for the verification. Raises Refused, and NotVerified, after which
    the file is as it was before."""
    with _locked(path):
        before = _content(path)
        _torchrun(before)
        after = run_py.installed(before)
        if after == before:
            if (why := why_not(path, site)) is not None:
                raise NotVerified(f"it was already installed and does not work: {why}")
            return False
        _compile(after, path)
        _replace(path, before, after)
        try:
            why = why_not(path, site)
        except BaseException:  # interrupted before it was verified
            _replace(path, after, before)
            raise
        if why is not None:
            _replace(path, after, before)
            raise NotVerified(f"{why}; the file is as it was before")
    return True


def remove(path: Path) -> run_py.Reading:
    """Remove taskd's and sed's lines; returns what was there. Raises Refused."""
    with _locked(path):
        before = _content(path)
        found = _torchrun(before)
        if found.installed:
            _compile(found.plain, path)
            _replace(path, before, found.plain)
    return found


def _torchrun(source: bytes) -> run_py.Reading:
    reading = run_py.read(source)
    missing = [
        f"{name}()" for name in ("main", "run") if f"\ndef {name}(".encode() not in reading.plain
    ]
    if missing:
        raise Refused(f"it is not torchrun: it defines no {' and no '.join(missing)}")
    return reading


def _content(path: Path) -> bytes:
    site = path.parents[2]
    straight = site.resolve() / path.relative_to(site)
    if straight.resolve() != straight:
        raise Refused(
            f"it is a link to {straight.resolve()}, which others may use: name that directory"
            " with --torch"
        )
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise Refused(f"it cannot be read: {error.strerror}") from None
    with open(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("it is not a file")
        if found.st_size > MAX_BYTES:
            raise Refused(f"it has {found.st_size} bytes: torchrun has less than {MAX_BYTES}")
        return file.read()


def _compile(source: bytes, path: Path) -> None:
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise Refused(f"it would not compile: {error}") from None


def _replace(path: Path, old: bytes, new: bytes) -> None:
    """Replace the file's content atomically and durably, keeping owner, mode and attributes. Raises
    Refused; the old file stays."""
    found = path.stat()
    if not found.st_mode & 0o222:
        raise Refused(
            f"it is read-only (mode {stat.S_IMODE(found.st_mode):04o}): make it writable first,"
            f" chmod u+w {path}"
        )
    fresh = path.with_name(FRESH)
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        try:
            _write(fresh, new, path, found)
            if _content(path) != old:  # by a program that does not know the lock: sed, pip
                raise Refused("another program has changed it meanwhile: try again")
            os.replace(fresh, path)
        except BaseException:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise
    except OSError as error:
        raise Refused(f"it cannot be replaced: {_reason(error)}") from None
    _forget_compiled(path)
    # not every file system supports it; the replacement is complete anyway
    with contextlib.suppress(OSError):
        _sync(path.parent)


def _write(fresh: Path, content: bytes, path: Path, found: os.stat_result) -> None:
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(content)
        file.flush()
        made = os.fstat(fd)
        if (made.st_uid, made.st_gid) != (found.st_uid, found.st_gid):
            os.fchown(fd, found.st_uid, found.st_gid)
        os.fchmod(fd, stat.S_IMODE(found.st_mode))
        with contextlib.suppress(OSError):  # labels of security modules, if any
            for name in os.listxattr(path):
                os.setxattr(fd, name, os.getxattr(path, name))
        os.fsync(fd)


def _forget_compiled(path: Path) -> None:
    """Remove the compiled file: one compiled as unchecked is used without a look at its source's
    size and time. A failure shows in the verification."""
    for compiled in (path.parent / "__pycache__").glob("run.*.pyc"):
        with contextlib.suppress(OSError):
            compiled.unlink()


def _sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file against other `taskd patch` processes. On a file system without locks replacing
    is still atomic."""
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"its directory cannot be opened: {error.strerror}") from None
    try:
        end = time.monotonic() + LOCK_LIMIT
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES):
                    break
            if time.monotonic() > end:
                raise Refused(f"another `taskd patch` has been at it for {LOCK_LIMIT:g} s: end it")
            # waiting in flock itself has no deadline
            time.sleep(0.05)
        yield
    finally:
        os.close(fd)


def why_not(path: Path, site: Path | None) -> str | None:
    """Why a launcher would not have taskd in it, or None; tested in a new interpreter, as the
    launcher is one."""
    places = [str(site.resolve())] if site is not None else []
    places += [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TASKD_")}
    environ.update(TASKD_PROCESS_ENABLE="on", PYTHONPATH=os.pathsep.join(places))
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(path)],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=IMPORT_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"`import torch.distributed.run` has not ended within {IMPORT_LIMIT:g} s"
    except OSError as error:
        return f"{sys.executable} cannot be started: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
    return (
        "`import torch.distributed.run`:"
        f" {lines[-1].strip() if lines else f'exit status {done.returncode}'}"
    )


def _reason(error: OSError) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{error.strerror}: run this as the user who has installed torch"
    if error.errno == errno.EROFS:
        return f"{error.strerror}: patch it where the image is built"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}: make room on that disk"
    return str(error.strerror)
