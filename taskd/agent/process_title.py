"""Sets what `ps` and `pgrep -f` show of this process: a forked rank shows the user's command line,
not the zygote's."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

ROOM = " " * 4096  # an argument of the zygote; longer command lines are cut
# fields of /proc/PID/stat after the name: proc(5) counts them as 48 and 49
_ARG_START, _ARG_END = 45, 46


def take(command: list[str]) -> None:
    """Overwrite this process's arguments in memory with `command`. Does nothing if /proc does not
    show where they are."""
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
