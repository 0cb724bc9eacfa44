"""What a script has between two passes of its loop: code, and variables with plain values."""

from __future__ import annotations

import ast
import functools
import sys
import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from taskd import raised
from taskd.worker.discovery import frames, syntax
from taskd.worker.discovery.script import ASKED, Own, frames_of
from taskd.worker.discovery.values import ITEMS, LARGEST, SCALARS, NotRecordable, recordable
from taskd.worker.state import plain
from taskd.worker.state.stored_attributes import into, like

Site = tuple[types.CodeType, int]  # and line
# frame -> variable -> encoded, device of a tensor, and the object's id; in what has changed, 1 if
# it is the object that was there before
Values = dict[str, dict[str, tuple[bytes, str, int]]]
_MOST = 64 << 10  # bytes of one variable
_CONTAINERS = {list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict, Counter}
_own = Own()  # knows the modules that it was asked for
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
# they only prepare the pass that follows, and a repair restores what they change
_HARMLESS = {"step", "set_epoch", "train"}
# these count, or draw, from the start again around what begins later
_RESTARTING = {"enumerate", "zip", "map", "islice", "chain", "cycle", "batched", "accumulate"}


def variables(bound: dict[str, set[str]] | None = None) -> Values:
    """Copies of what the variables of the script's frames and modules hold; large values and
    objects are left out. `bound`: of frames alone, without these."""
    found: Values = {}
    rest = LARGEST
    for space, held, _ in _spaces(modules=bound is None):
        for name, value in held.items():
            if name.startswith("__") or (bound and name in bound.get(space, ())):
                continue
            try:
                if room(value, min(_MOST, rest)) < 0:
                    continue
                data = plain.encode(recordable(value))
            except (NotRecordable, plain.Unrecordable):
                continue
            except Exception as error:  # of an object of the script: it must not end the job
                raised.heed(error)
                continue
            rest -= len(data)
            device = str(value.device) if isinstance(value, torch.Tensor) else ""
            found.setdefault(space, {})[name] = data, device, id(value)
    return found


def room(value: Any, left: int) -> int:
    """What is left of so many bytes; below 0 also for what is no plain value."""
    kind = type(value)
    if kind in SCALARS:
        return left - 8
    if kind in (str, bytes, bytearray):
        return left - len(value)
    if kind is torch.Tensor:
        return left - int(value.nbytes)
    if kind in _CONTAINERS:
        left -= 8 * len(value)
        inside = [*value.keys(), *value.values()] if left >= 0 and hasattr(kind, "keys") else value
        for inner in inside if left >= 0 else ():
            if (left := room(inner, left)) < 0:
                break
        return left
    numpy = sys.modules.get("numpy")
    if numpy is None or kind.__module__ != "numpy" or not hasattr(value, "nbytes"):
        return -1
    return left - int(value.nbytes)


def changed(present: Values, before: Values) -> Values:
    """Those that are new, or hold something else."""
    found: Values = {}
    for space, held in present.items():
        for name, (data, device, identity) in held.items():
            was = before.get(space, {}).get(name, (b"", "", 0))
            if was[:2] != (data, device):
                found.setdefault(space, {})[name] = data, device, int(was[2] == identity)
    return found


def put(values: Values, without: Collection[str] = ()) -> None:
    """Assign what was copied; what was changed in place is written into what is there. `without`:
    but for variables of these names."""
    for space, present, assign in _spaces():
        if held := {k: v for k, v in values.get(space, {}).items() if k not in without}:
            made = {}
            for name, (data, device, same) in held.items():
                value = plain.decode(data)
                value = value.to(device) if device else value
                there = present.get(name)
                made[name] = into(there, value) if same == 1 else like(there, value)
            assign(made)


def bound() -> dict[str, set[str]]:
    """The variables of each frame that have a value."""
    return {space: {*held} for space, held, _ in _spaces(modules=False)}


def _frames() -> list[tuple[str, types.FrameType]]:
    found = [frame for frame, _ in frames_of(_own)][::-1]  # outermost first: these stay
    return [(f"{i} {frame.f_code.co_name}", frame) for i, frame in enumerate(found)]


def _spaces(
    modules: bool = True,
) -> Iterator[tuple[str, dict[str, Any], Callable[[dict[str, Any]], None]]]:
    """Name, variables, and how to assign them."""
    for name, frame in _frames():
        yield name, frames.variables(frame), functools.partial(frames.assign, frame)
    # a process asks of a thousand modules whether they are the script's, once
    for name, module in list(sys.modules.items()) if modules else ():
        if name not in ("__main__", "__mp_main__") and _own.module(name):
            variables = vars(module)
            if len(variables) <= ITEMS:
                yield name, dict(variables), variables.update


def code(last: Site | None, around: bool = True) -> tuple[str, bool]:
    """The line where code begins that runs between two passes, "" if there is none, and whether it
    is in a loop around them (`around`: which is looked at). `last`: where the earlier pass was
    asked for."""
    follows: ast.stmt | None = None
    asks = True  # the innermost `for` asks for attempts
    for frame, _ in frames_of(_own):
        try:
            node = syntax.of(frame.f_code, frame.f_globals)
        except syntax.Unknown:
            return "", False
        finally:
            syntax.forget()
        file = Path(frame.f_code.co_filename).name
        rows = _around(node, frame.f_lineno)
        for inside, rest in rows:
            if around and isinstance(inside, _LOOPS) and not asks and follows is not None:
                return f"{file}:{follows.lineno}", True
            asks = asks and not isinstance(inside, _LOOPS)
            follows = follows or next((one for one in rest if not _is_harmless(one)), None)
        if last is not None and last[0] is frame.f_code and last[1] != frame.f_lineno:
            later = [one for one, _ in rows]
            for _, rest in _around(node, last[1]):
                until = next((i for i, one in enumerate(rest) if one in later), 0)
                if found := [one for one in rest[:until] if not _is_harmless(one)]:
                    return f"{file}:{found[0].lineno}", False
    return "", False


def site() -> Site | None:
    """Where the script asks for the pass."""
    frame = next((frame for _, frame in reversed(_frames())), None)
    return (frame.f_code, frame.f_lineno) if frame is not None else None


@dataclass(frozen=True)
class Loop:
    """A `for` of the script. `restarting`: a function around what it goes over that would begin
    anew in a replacement."""

    frame: types.FrameType
    first: int
    last: int
    restarting: str

    def runs(self) -> bool:
        if self.frame.f_code.co_flags & ASKED:  # a generator waits elsewhere
            return True
        running = any(frame is self.frame for frame in frames.stack())
        return running and self.first <= self.frame.f_lineno <= self.last


def loop() -> Loop | None:
    """The one that asks for its next item; None if it is not known."""
    _, frame = next(iter(reversed(_frames())), ("", None))
    if frame is None:
        return None
    try:
        node = syntax.of(frame.f_code, frame.f_globals)
    except syntax.Unknown:
        return None
    finally:
        syntax.forget()
    for one, _ in _around(node, frame.f_lineno):
        if isinstance(one, _LOOPS):
            over = list(ast.walk(one.iter)) if not isinstance(one, ast.While) else []
            calls = [x.func for x in over if isinstance(x, ast.Call)]
            names = [getattr(x, "id", getattr(x, "attr", "")) for x in calls]
            found = [name for name in names if name in _RESTARTING and "epochs" in names]
            last = one.end_lineno or one.lineno
            return Loop(frame, one.lineno, last, found[0] if found else "")
    return None


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
