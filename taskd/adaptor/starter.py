"""What started this launcher, as far as a scheduler's signals and the exit status pass through it.

A container's first process gets the scheduler's SIGTERM alone, and the kernel drops one that it has
no handler for: under a shell that runs a script the launcher gets no signal and is killed with the
container. And in a script's `taskd run … | tee log` the scheduler is given tee's exit status.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from functools import partial
from pathlib import Path

PROC = Path("/proc")


def warnings(pid: int | None = None, proc: Path = PROC) -> list[tuple[str, str]]:
    """What a scheduler could not tell this process, `pid`, or could not see of it, each with a
    remedy."""
    found = []
    for look in (partial(_deaf, pid or os.getpid(), proc), partial(_piped, proc)):
        # another user's process, or one that has ended
        with contextlib.suppress(OSError, ValueError, LookupError):
            if (said := look()) is not None:
                found.append(said)
    return found


def _deaf(pid: int, proc: Path) -> tuple[str, str] | None:
    # a container's first process has a session of its own, in which a script's commands are too;
    # a service gives what it starts another one
    if pid == 1 or {_session(1, proc), _session(pid, proc)} != {1}:
        return None
    above = _parent(pid, proc)
    while above > 1:
        above = _parent(above, proc)
    if above != 1:  # `kubectl exec` starts processes beside it
        return None
    first = _status(1, proc)
    heeded = int(first["SigCgt"], 16) | int(first["SigBlk"], 16) | int(first["SigIgn"], 16)
    if heeded >> (signal.SIGTERM - 1) & 1:
        return None
    return (
        f"the SIGTERM that stops a container goes to its pid 1 ({first['Name']}), which has no"
        " handler for it: this launcher never hears of it, and nothing is saved",
        "start it with `exec`, as the last line of the container's command, or the container with"
        " an init (docker run --init)",
    )


def _piped(proc: Path) -> tuple[str, str] | None:
    """A script's pipe. A shell that someone types into makes a process group for each pipe."""
    mine = os.fstat(1)
    if not stat.S_ISFIFO(mine.st_mode) or os.getpgrp() != os.getpgid(os.getppid()):
        return None
    shell = os.getppid()
    if os.path.samestat(mine, os.stat(proc / f"{shell}/fd/1")):  # exec > >(tee log)
        return None
    for other in (proc / f"{shell}/task/{shell}/children").read_text().split():
        try:
            reads = os.path.samestat(mine, os.stat(proc / other / "fd/0"))
        except OSError:  # it has ended
            continue
        if reads and int(other) != os.getpid():
            name = _status(int(other), proc)["Name"]
            return (
                f"standard output is piped into {name}: a scheduler sees the exit status of {name},"
                " not of this launcher (75: the state is saved; 93: a restart would not help)",
                "put `set -o pipefail` before that line (bash), or write into a file with > log"
                " 2>&1",
            )
    return None


def _parent(pid: int, proc: Path) -> int:
    return int(_status(pid, proc)["PPid"])


def _session(pid: int, proc: Path) -> int:
    """Its number in the innermost namespace."""
    return int(_status(pid, proc)["NSsid"].split()[-1])


def _status(pid: int, proc: Path) -> dict[str, str]:
    lines = (proc / str(pid) / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
