"""Sets what `ps` and `pgrep -f` show of this process: a forked rank shows the user's command line,
not the zygote's. Also puts the rank's marks (children.py) into /proc/PID/environ, where processes
that the rank forks inherit them."""

from __future__ import annotations

import contextlib
import ctypes
import os
from pathlib import Path

ROOM = " " * 4096  # an argument of the zygote; longer command lines are cut
# entries of a rank's environment that together name its process
MARKS = ("TASKD_SHARED_DIR", "TASKD_LOCAL_RANK", "TASKD_INCARNATION")
# a variable of the zygote's, with room for the marks
SPARE = "TASKD_SPARE", " " * 512
# fields of /proc/PID/stat after the name: proc(5) counts them as 48 to 51
_ARGUMENTS, _ENVIRONMENT = slice(45, 47), slice(47, 49)


def take(command: list[str]) -> None:
    """Overwrite this process's arguments in memory with `command`. Does nothing if /proc does not
    show where they are."""
    start, end = _memory(_ARGUMENTS)
    text = b"\0".join(part.encode(errors="surrogateescape") for part in command)
    if start:
        _write(start, end - start, text[: end - start - 1])


def hide_room() -> None:
    """Show this process without the argument ROOM, which is 4096 blanks to a reader."""
    with contextlib.suppress(OSError):
        shown = Path("/proc/self/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        take([os.fsdecode(argument) for argument in shown if argument != ROOM.encode()])


def mark(entries: list[str]) -> None:
    """Write the entries into the environment that this process began with, in place of SPARE."""
    start, end = _memory(_ENVIRONMENT)
    spare = "=".join(SPARE).encode()
    at = ctypes.string_at(start, end - start).find(spare) if start else -1
    text = b"\0".join(map(os.fsencode, entries))
    if at >= 0 and len(text) <= len(spare):
        _write(start + at, len(spare), text)


def _memory(fields: slice) -> tuple[int, int]:
    """Its beginning and its end; 0 if unknown."""
    with contextlib.suppress(OSError, ValueError):
        found = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[fields]
        start, end = map(int, found)
        if 0 < start < end:
            return start, end
    return 0, 0


def _write(start: int, size: int, text: bytes) -> None:
    ctypes.memset(start, 0, size)
    ctypes.memmove(start, text, len(text))
