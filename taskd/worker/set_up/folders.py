"""The directories that a rank's set-up makes or goes to. A name that has the time, a random number
or the next free version in it is another one in each process: what the job writes lies in several
directories, and each has a part. Where a replacement's differ, both are named.

One that the first process has made is there for a replacement, which runs the same set-up: making
it succeeds, whether the script allows that it exists or not."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable
from typing import Any

from taskd.records.start import FOLDERS, Start
from taskd.worker.communication import methods
from taskd.worker.set_up.imports import us

log = logging.getLogger("taskd.worker")

MOST = 1000  # names of one set-up
NAMED = 3
REMEDY = (
    "what the job writes is divided between the two. Let taskd.once() give the name, or what makes"
    " it different (the time, a random number, the next free version), or fix it in the program's"
    " configuration"
)

_layer = methods.Layer(0)
_made: dict[str, bool] = {}  # whether it was not there before
_first: dict[str, bool] = {}  # those of the rank's first process
_pid = 0


def begin() -> None:
    """Note what is made from now on. Idempotent."""
    global _pid
    if _pid:
        return
    _pid = os.getpid()
    for name in ("mkdir", "chdir"):
        _layer.put(os, name, _noting)


def begin_again() -> None:
    """The same in a replacement."""
    try:
        kept = json.loads(Start(*us()).read().get(FOLDERS, b"{}"))
    except (OSError, ValueError) as error:
        log.warning("the directories that the first set-up has made cannot be read: %s", error)
        kept = {}
    _first.update({name: made is True for name, made in kept.items()})
    begin()


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *args: Any, **more: Any) -> Any:
        name = _noted(path, sys._getframe(1).f_globals.get("__name__"), more)
        if name:
            _made.setdefault(name, False)
        try:
            original(path, *args, **more)
        except FileExistsError:
            if not name or not _first.get(name) or not os.path.isdir(name):
                raise
        if name and original.__name__ == "mkdir":
            _made[name] = True

    return call


def _noted(path: Any, caller: Any, more: dict[str, Any]) -> str:
    """The name of a directory that is noted, or nothing."""
    # one of tempfile's is nobody else's; a worker process makes its own
    if caller == "tempfile" or more.get("dir_fd") is not None or os.getpid() != _pid:
        return ""
    if not isinstance(path, (str, bytes, os.PathLike)) or len(_made) >= MOST:
        return ""
    return os.path.abspath(os.fsdecode(path))


def keep() -> None:
    """The loop begins: keep what this rank's first process has made."""
    _layer.remove()
    if made := {name: _made[name] for name in _there()}:
        try:
            Start(*us()).write({FOLDERS: json.dumps(made).encode()})
        except OSError as error:
            log.warning("the directories that the set-up has made cannot be kept: %s", error)


def compare() -> None:
    """The replacement's set-up is over: name what it has made in place of the first process's."""
    _layer.remove()
    for own, first in differing(_there(), list(_first))[:NAMED]:
        log.warning(
            "rank %s: its set-up made the directory %s, that of its first process %s: %s",
            *(us()[2], own, first, REMEDY),
        )


def _there() -> list[str]:
    """Nothing is written to one that the set-up has removed, as a compiler's."""
    return [name for name in _made if os.path.isdir(name)]


def differing(now: list[str], before: list[str]) -> list[tuple[str, str]]:
    """(one of `now`, the one of `before` in its place): as deep, with as much in common as any. Not
    what lies in such a directory, and nothing that only one of the two has made."""
    found: list[tuple[str, str]] = []
    left = [name for name in before if name not in now]
    for own in now:
        if own in before or any(own.startswith(f"{other}{os.sep}") for other, _ in found):
            continue
        as_deep = [name for name in left if name.count(os.sep) == own.count(os.sep)]
        first = max(as_deep, key=lambda name: len(os.path.commonprefix([name, own])), default=None)
        if first is not None and os.path.commonpath([first, own]) != os.sep:
            found.append((own, first))
            left.remove(first)
    return found
