"""The handlers that a framework registers, and how they are called."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger("taskd.worker")

STOP, CLEAN, REBUILD = "stop", "clean", "rebuild_group"
REPAIR, ROLLBACK = "repair", "rollback"
SAVE, RENAME, EXIT, SYNC = "save_ckpt", "rename", "exit", "stream_sync"
# of elastic training, see elastic.py
SHRINK = "zit_downgrade_rebuild"
GROW_REBUILD, GROW_REPAIR = "zit_upgrade_rebuild", "zit_upgrade_repair"
GROW_ROLLBACK = "zit_upgrade_rollback"
ELASTIC = (SHRINK, GROW_REBUILD, GROW_REPAIR, GROW_ROLLBACK)
NAMES = (STOP, CLEAN, REBUILD, REPAIR, ROLLBACK, SAVE, RENAME, EXIT, SYNC, *ELASTIC)

Handler = Callable[..., Any]


class Handlers:
    """By name, each with its registered context. `args`: the arguments set by
    `tft_set_step_args`."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[Handler, Any]] = {}
        self.args: Any = None
        self.args_set = False  # by tft_set_step_args

    def register(self, name: str, function: Handler, ctx: Any) -> None:
        """Raises TypeError."""
        if not callable(function):
            raise TypeError(
                f"tft_register_{name}_handler: func is {type(function).__name__}; give a function"
            )
        self._found[name] = function, ctx

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a handler with `arguments`, the framework's arguments and its context, as many of
        them as it takes. Returns what it returns, None if none is registered; raises what it
        raises."""
        if name not in self._found:
            return None
        function, ctx = self._found[name]
        # a rename handler takes (step, args), MindSpore's (step, ctx); an exit handler (ctx); those
        # of elastic training (…, args, what is done), and no context
        given: tuple[Any, ...]
        if name == SYNC:
            given = ()
        elif name == EXIT:
            given = (ctx,)
        elif name == RENAME:
            given = (*arguments, ctx if ctx is not None else self.args)
        elif name in ELASTIC:
            given = (*arguments[:-1], self.args, arguments[-1])
        else:
            given = (*arguments, self.args, ctx)
        began = time.monotonic()
        try:
            return fitting(function, given)
        finally:
            log.info("%s handler: %.1f ms", name, (time.monotonic() - began) * 1e3)


def fitting(function: Handler, given: tuple[Any, ...]) -> Any:
    """Call `function` with as many of the arguments `given` as it takes: versions of the interface
    differ in their number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # written in C
        return function(*given)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*given)
    return function(*given[: len(positional)])
