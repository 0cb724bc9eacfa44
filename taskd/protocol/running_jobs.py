"""This user's running jobs on this machine, so that commands find them without their port.

Each launcher leaves a record beside the generated secrets (see secret_file.py for the place and who
can read it), and holds a lock on it until its process has ended: a record whose lock is free is of
a launcher that is gone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from dataclasses import asdict, dataclass

from taskd.core.job import job_name
from taskd.protocol import secret_file
from taskd.protocol.keys import BadSecret

_PREFIX = "job-"  # a secret's name begins with its port
SIZE = 1 << 16  # bytes; a record has some hundred


@dataclass(frozen=True)
class Job:
    """`job_id`: it may be the job's key; what is shown is `name`."""

    job_id: str
    host: str  # of its manager
    port: int
    pid: int  # of the launcher
    folder: str  # in which the launcher was started
    network: int  # its network namespace; containers may share /dev/shm, and not their ports

    @property
    def name(self) -> str:
        return job_name.name(self.job_id)

    def __str__(self) -> str:
        return f"{self.name} (port {self.port}, launcher {self.pid}, {self.folder})"


def leave(job_id: str, host: str, port: int) -> int:
    """Leave the record of this process's job; returns a descriptor that keeps it as long as it is
    open, in this process alone. -1 where no record can be kept: then commands have to be given the
    port."""
    found()  # removes those of launchers that are gone
    job = Job(job_id, host, port, os.getpid(), _folder(), _network())
    with contextlib.suppress(BadSecret):
        for path in secret_file.directories():
            with contextlib.suppress(OSError):
                return _leave(job, path)
    return -1


def _leave(job: Job, path: str) -> int:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    with secret_file.opened(path) as folder:
        # without a name until it is locked and complete
        file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(file, json.dumps(asdict(job)).encode())
            name = f"{_PREFIX}{secrets.token_hex(8)}"
            os.link(f"/proc/self/fd/{file}", name, dst_dir_fd=folder, follow_symlinks=True)
        except BaseException:
            os.close(file)
            raise
        return file


def withdraw(record: int) -> None:
    """Let go of a record that `leave` has returned; whoever looks next removes it."""
    if record >= 0:
        os.close(record)


def found() -> list[Job]:
    """This user's running jobs on this machine, once each, by port. Removes records of launchers
    that are gone."""
    jobs: dict[tuple[str, str, int], Job] = {}
    for path in secret_file.directories():
        with contextlib.suppress(OSError, BadSecret), secret_file.opened(path) as at:
            for name in os.listdir(at):
                # ValueError, TypeError: another taskd's record
                with contextlib.suppress(OSError, ValueError, TypeError):
                    if name.startswith(_PREFIX) and (job := _read(at, name)) is not None:
                        jobs.setdefault((job.job_id, job.host, job.port), job)
    ours = _network()
    return sorted((j for j in jobs.values() if j.network == ours), key=lambda job: job.port)


def _read(folder: int, name: str) -> Job | None:
    # without O_NONBLOCK, opening a pipe would block
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        if secret_file.unsafe(os.fstat(file)):
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Job(**json.loads(os.read(file, SIZE)))
        os.unlink(name, dir_fd=folder)
        return None
    finally:
        os.close(file)


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a folder that was removed"


def _network() -> int:
    return os.stat("/proc/self/ns/net").st_ino
