"""Processes whose parent has ended before them, as the launcher's own: the zygote's, when it is
gone, so that their exit codes are known; and what ranks have left behind, which must not stay as
zombies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterable
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt() -> None:
    """From now on this process is the parent of its descendants whose own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(sessions: Iterable[int], known: Iterable[int]) -> None:
    """Clear away dead processes that ranks have left behind: of `sessions`, which ranks have led,
    but not those of `known`, which somebody waits for."""
    ours, waited = set(sessions), set(known)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                if pid not in waited and _dead_of(pid) in ours:
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def code(pid: int) -> int:
    """How an adopted process has ended, negative for a signal; that of SIGKILL where the kernel
    cannot tell yet."""
    with contextlib.suppress(OSError):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    return -signal.SIGKILL


def _dead_of(pid: int) -> int:
    """The session of a zombie; -1 for what is none."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return int(fields[3]) if fields[0] == b"Z" else -1
