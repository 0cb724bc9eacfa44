"""The generated secret of a job of one node that was given none: the first process to start,
manager or launcher, makes it, and the others find it.

It is in /dev/shm, or, where that is missing, full or read-only, in the directory for temporary
files: whoever looks for it looks in both. XDG_RUNTIME_DIR differs between shells (sudo, cron,
docker exec), and is removed when its user logs out while the job runs; old files in /tmp are
removed. The secret stays when the job ends: other processes of the job may still start,
and the same job started again on the same port uses it again, as no other user has learned it. A
reboot empties /dev/shm.

Any user may write to /dev/shm. So the directory and each file are used only if they belong to this
user and are closed to others; links are not followed. A user who makes the directory first keeps
our jobs from starting without a TASKD_SECRET, and learns nothing.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from hashlib import blake2b

from taskd.protocol.keys import REMEDY, BadSecret

SHARED = "/dev/shm"
SIZE = 64  # hexadecimal digits, of 32 random bytes
TRIES = 3  # a file that is removed between two looks is made again; chance does not repeat that


def user() -> int:
    return os.geteuid()


def directories() -> list[str]:
    """Where this user's secrets, and the records of its running jobs, may be: the first that has
    room for one has it."""
    bases = [SHARED] if os.access(SHARED, os.W_OK) else []
    bases = list(dict.fromkeys([*bases, tempfile.gettempdir()]))
    return [os.path.join(base, f"taskd-secrets-{user()}") for base in bases]


def obtain(job: str, port: int) -> bytes:
    """The job's secret, made now if there is none. Raises BadSecret."""
    if (found := find(job, port)) is not None:
        return found
    why: list[str] = []
    for path in directories():
        try:
            return _obtain(job, port, path)
        except OSError as error:
            why.append(f"{path}: {error.strerror}")
    raise BadSecret(f"a secret for this job cannot be kept in {'; '.join(why)}; {REMEDY}")


def _obtain(job: str, port: int, path: str) -> bytes:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    with opened(path) as folder:
        for _ in range(TRIES):
            if (found := _read(folder, _name(job, port), path)) is not None:
                return found
            _create(folder, _name(job, port))
    raise BadSecret(f"another process removes the secrets in {path} as they are made: {REMEDY}")


def find(job: str, port: int) -> bytes | None:
    """The job's secret, or None. Raises BadSecret."""
    first, *others = directories()
    if (found := _find(job, port, first)) is not None:
        return found
    for path in others:
        with contextlib.suppress(BadSecret):  # what somebody has put there stops no job
            if (found := _find(job, port, path)) is not None:
                return found
    return None


def _find(job: str, port: int, path: str) -> bytes | None:
    try:
        with opened(path) as folder:
            return _read(folder, _name(job, port), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadSecret(
            f"the secret of this job cannot be read from {path}: {error.strerror}; {REMEDY}"
        ) from None


def forget(job: str, port: int) -> None:
    """Remove the job's secret."""
    for path in directories():
        with contextlib.suppress(OSError, BadSecret), opened(path) as folder:
            os.unlink(_name(job, port), dir_fd=folder)


def _name(job: str, port: int) -> str:
    # a job's id may have any characters
    return f"{port}-{blake2b(job.encode(errors='surrogateescape'), digest_size=16).hexdigest()}"


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open the directory: what is checked is what is used, whatever happens to the name. Raises
    OSError, and BadSecret for a directory that others own or may use."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (NotADirectoryError, PermissionError) as error:  # a link or a file; another user's
        raise BadSecret(
            f"{path} is not this user's directory ({error.strerror}): remove it, or {REMEDY}"
        ) from None
    try:
        if why := unsafe(os.fstat(folder)):
            raise BadSecret(f"{path} {why}: remove it, or {REMEDY}")
        yield folder
    finally:
        os.close(folder)


def _read(folder: int, name: str, path: str) -> bytes | None:
    where = os.path.join(path, name)
    try:
        # without O_NONBLOCK, opening a pipe would block
        file = os.open(
            name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadSecret(
            f"{where} cannot be read ({error.strerror}): remove it, or {REMEDY}"
        ) from None
    try:
        found = os.fstat(file)
        why = unsafe(found) or ("" if stat.S_ISREG(found.st_mode) else "is not a file")
        content = b"" if why else os.read(file, SIZE + 1)
    finally:
        os.close(file)
    if why or len(content) != SIZE or set(content) - set(b"0123456789abcdef"):
        raise BadSecret(f"{where} {why or 'was not written by taskd'}: remove it, or {REMEDY}")
    return content


def unsafe(found: os.stat_result) -> str:
    if found.st_uid != user():
        return f"belongs to user {found.st_uid}"
    mode = stat.S_IMODE(found.st_mode)
    return f"is open to other users (mode {mode:04o})" if mode & 0o077 else ""


def _create(folder: int, name: str) -> None:
    """Create the secret atomically; of several processes that try at once, one succeeds."""
    draft = f".{name}-{secrets.token_hex(8)}"
    file = os.open(
        draft,
        os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
        0o600,
        dir_fd=folder,
    )
    try:
        try:
            os.write(file, secrets.token_hex(SIZE // 2).encode())
        finally:
            os.close(file)
        with contextlib.suppress(FileExistsError):
            os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.unlink(draft, dir_fd=folder)
