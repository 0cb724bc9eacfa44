"""The exception that ended a rank: the rank leaves its traceback in the directory that it shares
with its agent. And those of signals, which may arrive anywhere.

`import taskd` puts `offer` before the hook that prints tracebacks. Imports only the standard
library.
"""

from __future__ import annotations

import _signal
import atexit
import contextlib
import functools
import os
import stat
import sys
import traceback
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

LIMIT = 32 << 10  # bytes of one traceback; a longer one keeps its beginning and its end
SENT = 16 << 10  # characters of one that an agent tells the manager
LINE = 300  # characters; as long as those that ranks report themselves
_left = False  # this process has left one


class Told(Exception):
    """Ends a rank, and is no fault of its script: the text says all, no traceback is printed."""


def offer() -> None:
    """From now on, leave an exception that ends this process for its agent, if it is a rank."""
    before = sys.excepthook

    def note(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        with contextlib.suppress(Exception):  # such as a full disk: still print the traceback
            leave("".join(traceback.format_exception(kind, value, trace)))
        # Python, and what stands in for it, sets this first; others call the hook and go on
        if (
            getattr(sys, "last_value", None) is value
            and not issubclass(kind, KeyboardInterrupt)
            and is_rank()
        ):
            atexit.register(_end_at_once)
        if issubclass(kind, Told):
            print(f"taskd: {value}", file=sys.stderr, flush=True)
        else:
            before(kind, value, trace)

    sys.excepthook = note


def _end_at_once() -> None:
    """End this process with status 1 after its other exit functions, without taking the interpreter
    apart: with torch that takes 0.3 to 0.9 s, in which all ranks wait for its replacement. Its
    threads have been waited for already."""
    try:
        atexit.unregister(_end_at_once)
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        import ctypes

        ctypes.CDLL(None).fflush(None)  # what C code has printed
    finally:
        os._exit(1)


def left_by(error: SystemExit, trace: TracebackType | None) -> None:
    """Leave an exception that Python prints without a traceback; `trace`: where the script's own
    frames begin. Nothing if its status is 0."""
    if error.code not in (None, 0):
        with contextlib.suppress(Exception):
            leave("".join(traceback.format_exception(type(error), error, trace)))


def is_left() -> bool:
    """Whether this process ends by an exception."""
    return _left


def is_rank() -> bool:
    """Whether this process is a rank under an agent, not one that a rank has started."""
    from taskd.cython_api import slot

    return slot.number() is not None or "TASKD_SLOT" in os.environ


def heed(error: BaseException) -> None:
    """Raise `error` again if the handler of a signal raised it: Python calls handlers between any
    two lines of the main thread, and it is for the script, as that of a loader whose worker has
    died. First thing where taskd passes over what the script's values raise."""
    through = {frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)}
    # signal.getsignal makes an enum of each, which takes 20 times as long
    if any(_code(_signal.getsignal(number)) in through for number in range(1, _signal.NSIG)):
        raise error


def _code(handler: Any) -> CodeType | None:
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if not hasattr(handler, "__code__") and callable(handler):
        handler = type(handler).__call__
    return getattr(handler, "__code__", None)


def leave(text: str) -> None:
    """Leave `text` as the reason of this process's end, if it is a rank. Raises OSError."""
    global _left
    _left = True
    if not is_rank():
        return
    path = _path(Path(os.environ["TASKD_SHARED_DIR"]), os.environ["TASKD_LOCAL_RANK"], os.getpid())
    data = text.encode(errors="replace")
    if len(data) > LIMIT:
        data = data[: LIMIT // 4] + b"\n  [...]\n" + data[-3 * LIMIT // 4 :]
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(fd, "wb") as file:
        file.write(data)
    os.replace(fresh, path)


def read(directory: Path, local: int, pid: int) -> str:
    """Read the traceback left by process `pid` of local rank `local`; "" if there is none."""
    try:
        fd = os.open(
            _path(directory, str(local), pid),
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC,
        )
    except OSError:
        return ""
    with open(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return ""
        return file.read(2 * LIMIT).decode(errors="replace")


def line(text: str) -> str:
    """The line of a traceback that names the exception; the last line that is not blank if no
    frames come before."""
    lines = [line for line in text.splitlines() if line.strip()]
    frames = [i for i, line in enumerate(lines) if line.lstrip().startswith('File "')]
    after = lines[frames[-1] + 1 :] if frames else []
    found = next((line for line in after if line[:1].strip()), lines[-1] if lines else "")
    found = found.rstrip(" .")  # a sentence goes on after it
    return found if len(found) <= LINE else f"{found[:LINE]}…"


def cut(text: str, most: int = SENT) -> str:
    """A traceback of at most about `most` characters: the end says more than the beginning."""
    if len(text) <= most:
        return text
    return f"{text[: most // 4]}\n  [...]\n{text[-3 * most // 4 :]}"


def _path(directory: Path, local: str, pid: int) -> Path:
    return directory / f"raised-{int(local)}-{pid}"
