"""The collectives of a rank's set-up: recorded in its first process, replayed to a replacement.

A replacement runs the script's set-up long after its peers. Its process groups use torch's fake
backend, with the names, ranks and backends that the script asked for; its collectives and store
calls return at once what they returned to the rank's first process. When the loop is reached, the
real communicators replace the fake groups.

The same holds between the passes of a loop: what the first process learns there, in an evaluation
for example, a replacement gets at the same place.
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
from taskd.worker.set_up import folders, names
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
    if now.mode != OFF or "TASKD_SHARED_DIR" not in os.environ:
        return
    if dist.is_available() and dist.is_initialized():
        now.results.missed = sum(groups.Renewals().counts().values())
    now.mode = RECORD
    install()
    folders.begin()
    names.begin(gives=False)


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
    """The script reads `job.step`: if it continues with job.call, its loop begins here."""
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
        if "TASKD_SHARED_DIR" in os.environ:
            now.keep()
            if os.environ.get("TASKD_INCARNATION", "0") == "0":
                folders.keep()
                names.keep()
        now.mode = OFF
        uninstall()


def left_to_framework() -> None:
    """Leave the set-up to a framework that repairs its ranks through handlers: it knows that the
    process is a replacement, and which collectives to leave out. Earlier results are replayed."""
    if now.mode == GIVE:
        now.theirs = True
    elif now.mode == RECORD:
        stop(calls=False)


def again() -> None:
    """A pass is over: record what the script learns until the next one begins."""
    if now.mode == OFF and "TASKD_SHARED_DIR" in os.environ:
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


def plan(text: str, begun: bool = False) -> None:
    """The script begins a pass of its loop. `begun`: the rank has a record of it or of a later one.
    Raises NotTheSame if the rank's first process began another in its place."""
    if now.mode != OFF:
        now.plan(text, begun)


def made() -> int:
    """How many results there are."""
    return len(now.results.made)


def epoch(text: str, begun: bool, at: int | None = None) -> None:
    """The script begins an epoch of job.epochs, or had left the loop when there were `at` results.
    `begun`: the rank's previous process has done so: earlier results are passed over."""
    if now.mode != OFF:
        now.epoch(text, begun, at)


# -- a replacement ---------------------------------------------------------------------------------


def stand_in() -> None:
    """Until `real()`, replay the results of the rank's first process, and make every group with
    torch's fake backend. Idempotent."""
    if now.mode == GIVE:
        return
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    now.mode = GIVE
    if "TASKD_SHARED_DIR" in os.environ:
        now.load()
    install()
    without_peers()
    if "TASKD_SHARED_DIR" in os.environ:
        folders.begin_again()
        names.begin(gives=True)


def reload() -> None:
    """Read the results that the rank's previous process has written meanwhile."""
    if now.mode == GIVE:
        now.load()


def check() -> None:
    """Raises NotTheSame if this replacement's set-up differs from its predecessor's."""
    now.check()


def real() -> None:
    """Make groups and collectives real from now on."""
    if now.mode == GIVE:
        now.note_peers()
        now.mode = OFF
        uninstall()
        if "TASKD_SHARED_DIR" in os.environ:
            folders.compare()
            names.end()


def came_back(between: bool) -> None:
    """This replacement is where its predecessor was; `between`: between two passes, where it may
    have got something already."""
    now.come_back(between)
