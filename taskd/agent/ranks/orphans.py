"""Orphans that the launcher adopts: the children of a dead zygote, so that their exit codes are
known; and processes that ranks leave behind, which are ended (children.py) or have ended and must
not stay as zombies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """Make this process the parent of its descendants when their own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(sessions: Iterable[int], known: Iterable[int]) -> None:
    """Reap dead processes that ranks have left behind: those in `sessions`, which ranks have led,
    but not `known`, which other code waits for."""
    ours, waited = set(sessions), set(known)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                if pid not in waited and _dead_of(pid) in ours:
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def code(pid: int) -> int:
    """The exit code of an adopted process, negative for a signal; that of SIGKILL if the kernel
    cannot tell yet."""
    with contextlib.suppress(OSError):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    return -signal.SIGKILL


def _dead_of(pid: int) -> int:
    """The session of a zombie; -1 for any other process."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[3]) if fields[0] == b"Z" else -1
