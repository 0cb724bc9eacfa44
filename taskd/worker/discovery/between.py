"""What a script has between two passes of its loop: code, and variables with plain values."""

from __future__ import annotations

import ast
import types
from pathlib import Path
from typing import Any

import torch

from taskd import raised
from taskd.worker.discovery import frames, syntax
from taskd.worker.discovery.script import Own, frames_of
from taskd.worker.discovery.values import LARGEST, NotRecordable, recordable
from taskd.worker.state import plain
from taskd.worker.state.stored_attributes import into

Site = tuple[types.CodeType, int]  # and line
Values = dict[str, dict[str, tuple[bytes, str]]]  # frame -> variable -> see `variables`
_LONGEST = 1000  # characters, or items
_MOST = 64 << 10  # bytes of one variable
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# they only prepare the pass that follows, and a repair restores what they change
_HARMLESS = {"step", "set_epoch", "train"}


def variables(bound: dict[str, set[str]] | None = None) -> Values:
    """Copies of what the variables of the script's frames hold: of each its value, encoded, and the
    device of a tensor. Large values and objects are left out. `bound`: without these."""
    found: Values = {}
    rest = LARGEST
    for frame_name, frame in _frames():
        for name, value in frames.variables(frame).items():
            if name.startswith("__") or (bound and name in bound.get(frame_name, ())):
                continue
            try:
                data = plain.encode(recordable(value, _LONGEST, _LONGEST))
                if len(data) <= min(_MOST, rest):
                    rest -= len(data)
                    device = str(value.device) if isinstance(value, torch.Tensor) else ""
                    found.setdefault(frame_name, {})[name] = data, device
            except (NotRecordable, plain.Unrecordable):
                continue
            except Exception as error:  # of an object of the script: it must not end the job
                raised.heed(error)
    return found


def changed(present: Values, before: Values) -> Values:
    """Those that are new, or hold something else."""
    return {
        name: new
        for name, found in present.items()
        if (new := {k: v for k, v in found.items() if before.get(name, {}).get(k) != v})
    }


def put(values: Values) -> None:
    """Assign what was copied; a container or tensor that is there already gets the content."""
    for frame_name, frame in _frames():
        if held := values.get(frame_name):
            present = frames.variables(frame)
            made = {
                name: into(present.get(name), _made(data, device))
                for name, (data, device) in held.items()
            }
            frames.assign(frame, made)


def _made(data: bytes, device: str) -> Any:
    value = plain.decode(data)
    return value.to(device) if device else value


def bound() -> dict[str, set[str]]:
    """The variables of each frame that have a value."""
    return {name: {*frames.variables(frame)} for name, frame in _frames()}


def _frames() -> list[tuple[str, types.FrameType]]:
    found = [frame for frame, _ in frames_of(Own())][::-1]  # outermost first: these stay
    return [(f"{i} {frame.f_code.co_name}", frame) for i, frame in enumerate(found)]


def code(last: Site | None) -> tuple[str, bool]:
    """The line where code begins that runs between two passes, "" if there is none, and whether it
    is in a loop around them. `last`: where the earlier pass was asked for."""
    follows: ast.stmt | None = None
    asks = True  # the innermost `for` asks for attempts
    for frame, _ in frames_of(Own()):
        try:
            node = syntax.of(frame.f_code, frame.f_globals)
        except syntax.Unknown:
            return "", False
        finally:
            syntax.forget()
        file = Path(frame.f_code.co_filename).name
        around = _around(node, frame.f_lineno)
        for inside, rest in around:
            if isinstance(inside, _LOOPS) and not asks and follows is not None:
                return f"{file}:{follows.lineno}", True
            asks = asks and not isinstance(inside, _LOOPS)
            follows = follows or next((one for one in rest if not _is_harmless(one)), None)
        if last is not None and last[0] is frame.f_code and last[1] != frame.f_lineno:
            later = [one for one, _ in around]
            for _, rest in _around(node, last[1]):
                until = next((i for i, one in enumerate(rest) if one in later), 0)
                if found := [one for one in rest[:until] if not _is_harmless(one)]:
                    return f"{file}:{found[0].lineno}", False
    return "", False


def site() -> Site | None:
    """Where the script asks for the pass."""
    frame = next((frame for _, frame in reversed(_frames())), None)
    return (frame.f_code, frame.f_lineno) if frame is not None else None


def _around(node: ast.AST, line: int) -> list[tuple[ast.stmt, list[ast.stmt]]]:
    """The statements around this line, innermost first, and what follows each in its block."""
    for block in ("body", "orelse", "finalbody", "handlers"):
        found = getattr(node, block, None)
        rows = found if isinstance(found, list) else []
        for i, one in enumerate(rows):
            if one.lineno <= line <= (one.end_lineno or one.lineno):
                rest = [] if block == "handlers" else rows[i + 1 :]
                return [*_around(one, line), (one, rest)]
    return []


def _is_harmless(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Pass, ast.Continue)):
        return True
    calls = [x.func for x in ast.walk(node) if isinstance(x, ast.Call)]
    if any(isinstance(x, ast.Attribute) and x.attr == "once" for x in calls):
        return True
    if not isinstance(node, ast.Expr):
        return False
    called = node.value
    if not isinstance(called, ast.Call):
        return isinstance(called, ast.Constant)
    return isinstance(called.func, ast.Attribute) and called.func.attr in _HARMLESS
