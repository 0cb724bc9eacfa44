"""What `ps` and `pgrep -f` show of this process: a forked rank shows the command of the user's
script, not the zygote's."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

ROOM = " " * 4096  # an argument of the process that is forked; longer command lines are cut
# fields of /proc/PID/stat behind the name: proc(5) counts them as 48 and 49
_ARG_START, _ARG_END = 45, 46


def take(command: list[str]) -> None:
    """Show `command` from now on, in the memory of this process's own arguments. Does nothing where
    /proc does not tell where that is."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
        if not 0 < start < end:
            return
        text = b"\0".join(part.encode(errors="surrogateescape") for part in command)[
            : end - start - 1
        ]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))
