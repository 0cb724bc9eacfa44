"""The frames that run, and their local variables."""

from __future__ import annotations

import ctypes
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any


def stack() -> Iterator[types.FrameType]:
    """From the caller's on, innermost first."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def running(code: types.CodeType) -> types.FrameType | None:
    """The innermost frame of that code."""
    return next((frame for frame in stack() if frame.f_code is code), None)


def variables(frame: types.FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables that leaves nothing behind on the frame.

    Before Python 3.13, `f_locals` of a function is a dict that stays on its frame, so whatever the
    variables held at that moment lives until the function returns. Its variables are taken out of
    it again, unless somebody else holds it (the script has called locals(), a debugger is at work).
    What exec() has put there is not a variable of the code and stays."""
    code = frame.f_code
    seen = frame.f_locals
    found = dict(seen)
    function = code.co_flags & inspect.CO_OPTIMIZED and type(seen) is dict
    # the frame, this function, and the argument of getrefcount
    if function and sys.getrefcount(seen) <= 3:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            seen.pop(name, None)
    return found


def assign(frame: types.FrameType, values: dict[str, Any]) -> None:
    """Assign to local variables of a frame that is waiting for a call to return."""
    seen: Any = frame.f_locals
    seen.update(values)
    # from Python 3.13, f_locals writes through
    if frame.f_code.co_flags & inspect.CO_OPTIMIZED and sys.version_info < (3, 13):
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        del seen
        variables(frame)  # leaves nothing behind
