"""The collectives of a rank's set-up: recorded in its first process, given again to a replacement.

A replacement runs the script's set-up when its peers have long left it. Its process groups are of
torch's fake backend, with the names, ranks and backends that the script asked for; its collectives
and its calls of stores return at once what they returned to the rank's first process. When the loop
is reached, the real communicators replace the fake groups.

Between the passes of a loop the same holds: what the first process learns there, by an evaluation
for example, a replacement gets when it passes that place.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist

from taskd.worker.communication import groups
from taskd.worker.set_up.calls import GIVE, OFF, RECORD
from taskd.worker.set_up.interception import install, now, suspended, uninstall, without_peers

log = logging.getLogger("taskd.worker")


def begin() -> None:
    """The script is about to run. Idempotent."""
    if os.environ.get("TASKD_INCARNATION", "0") != "0":
        stand_in()
    else:
        record()


# -- a rank's first process ------------------------------------------------------------------------


def record() -> None:
    """Record from now on, in a rank's first process. Idempotent."""
    if now.mode != OFF or "TASKD_VAULT" not in os.environ:
        return
    if dist.is_available() and dist.is_initialized():
        now.results.missed = groups.Renewals().begun()
    now.mode = RECORD
    install()


def settle(protected: Iterable[torch.Tensor]) -> None:
    """protect() has been called; the set-up may go on behind it."""
    if now.mode == RECORD:
        now.settle(protected)
        now.keep()
        if now.results.missed:
            log.warning(
                "%d collectives were made before `import taskd`, which a replacement cannot be"
                " given: import taskd at the top of the script",
                now.results.missed,
            )


def step_asked() -> None:
    """The script reads `job.step`: if it goes on with job.call, its loop begins here."""
    if now.mode == RECORD:
        now.mark = len(now.results.made)


def stop(calls: bool) -> None:
    """A pass of the loop begins: its collectives are real and repeated with their step. `calls`: by
    job.call."""
    if now.mode == GIVE and now.rest:  # the predecessor had called more; its peers are here
        now.come_back(between=False)
        now.mode = RECORD
    if now.mode == RECORD:
        now.settle()
        now.begin_loop(calls)
        if "TASKD_VAULT" in os.environ:
            now.keep()
        now.mode = OFF
        uninstall()


def left_to_framework() -> None:
    """A framework repairs its ranks by handlers, and knows in its set-up that a process is a
    replacement: which collectives to leave out is its affair. What others made before is given."""
    if now.mode == GIVE:
        now.theirs = True
    elif now.mode == RECORD:
        stop(calls=False)


def again() -> None:
    """A pass is over: what the script learns until the next one begins is recorded."""
    if now.mode == OFF and "TASKD_VAULT" in os.environ and not now.results.full:
        now.between()
        install()


def once(function: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
    """See `taskd.once`."""
    if now.mode == OFF:
        return function(*args, **more)
    name = getattr(function, "__qualname__", type(function).__name__)
    return now.once(name, lambda: _quietly(function, args, more))


def _quietly(function: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]) -> Any:
    with suspended():
        return function(*args, **more)


def plan(text: str) -> None:
    """The script begins a pass of its loop. Raises NotTheSame if the rank's first process began
    another in its place."""
    if now.mode != OFF:
        now.plan(text)


# -- a replacement ---------------------------------------------------------------------------------


def stand_in() -> None:
    """Until `real()`, give what the rank's first process got, and make every group of this process
    with torch's fake backend. Idempotent."""
    if now.mode == GIVE:
        return
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    now.mode = GIVE
    if "TASKD_VAULT" in os.environ:
        now.load()
    install()
    without_peers()


def reload() -> None:
    """The rank's previous process has gone on meanwhile: read what it has kept since."""
    if now.mode == GIVE:
        now.load()


def check() -> None:
    """Raises NotTheSame if this replacement's set-up differs from its predecessor's."""
    now.check()


def real() -> None:
    """From now on groups and collectives are real ones."""
    if now.mode == GIVE:
        now.note_peers()
        now.mode = OFF
        uninstall()


def came_back(between: bool) -> None:
    """This replacement is where its predecessor was; `between`: between two passes, where it may
    have got something already."""
    now.come_back(between)
