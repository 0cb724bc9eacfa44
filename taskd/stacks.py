"""The Python stacks of a rank's threads, even if it is stuck in C holding the interpreter's lock:
faulthandler writes them from a signal handler into a pipe that the agent reads."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
from pathlib import Path

# unused: C libraries and profilers use the real-time signals at both ends
SIGNAL = signal.SIGRTMAX - 3
# seconds that the first line may take; a process that is stopped or waits in the kernel writes
# nothing
FIRST = 0.2
# seconds after which no more is expected: the handler never waits
QUIET = 0.03


def pipe(directory: Path, local_rank: int) -> int:
    """Create the rank's pipe and open the read end."""
    path = directory / f"stacks-{local_rank}"
    os.mkfifo(path, 0o600)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


_offered = False


def offer(directory: Path, local_rank: int) -> None:
    """In the rank: have the signal write into the pipe from now on. Idempotent."""
    global _offered
    import faulthandler

    with contextlib.suppress(OSError, RuntimeError, ValueError):
        if _offered:
            return
        fd = os.open(directory / f"stacks-{local_rank}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        faulthandler.register(SIGNAL, file=fd, all_threads=True, chain=False)
        _offered = True


def offered(pid: int) -> bool:
    """Whether process `pid` has a handler; the signal would kill it otherwise."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(status.partition("\nSigCgt:")[2].split(None, 1)[0], 16)
    except (OSError, ValueError, IndexError):
        return False
    return bool(caught >> (SIGNAL - 1) & 1)


def take(pid: int, fd: int) -> str:
    """Request and read the stacks of process `pid`; "" if it writes none."""
    try:
        process = os.pidfd_open(pid)  # another one may get its number
    except OSError:
        return ""
    try:
        return _take(process, fd) if offered(pid) else ""
    finally:
        os.close(process)


def _take(process: int, fd: int) -> str:
    with contextlib.suppress(OSError):
        while os.read(fd, 65536):  # left over from an earlier process
            pass
    text = b""
    try:
        signal.pidfd_send_signal(process, SIGNAL)
        while select.select([fd], [], [], QUIET if text else FIRST)[0]:
            part = os.read(fd, 65536)
            if not part:  # no writer: it has died, or never called offer
                break
            text += part
    except OSError:
        pass
    return text.decode(errors="replace")


_FRAME = re.compile(r'^ +File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$', re.MULTILINE)
_TASKD = os.path.dirname(os.path.abspath(__file__)) + os.sep
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def place(text: str) -> str:
    """Where the current thread of these stacks is: the innermost call, and the line of the script
    that led there; "" if it is nowhere in a script."""
    _, _, current = text.rpartition("\nCurrent thread") if "\nCurrent" in text else ("", "", text)
    frames = list(_FRAME.finditer(current.split("\n\n")[0]))
    for frame in frames:
        file = frame["file"]
        if "-packages" + os.sep in file or file.startswith((_TASKD, _LIBRARY, "<")):
            continue
        inside = "" if frame is frames[0] else f"in {frames[0]['name']}, called "
        return f"{inside}at {file}:{frame['line']} ({frame['name']})"
    return ""


STOPPED = ("stopped by a signal", "stopped by a debugger")


def state(pid: int) -> str:
    """The kernel's state of a process that may be stuck, in words; "" if it is an ordinary one."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return "gone"
    return {
        b"T": STOPPED[0],
        b"t": STOPPED[1],
        b"D": "waiting for a disk or a network file system",
    }.get(letter, "")
