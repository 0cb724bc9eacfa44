"""In each worker: waits after MindSpore's `init()` until the process groups of all ranks exist.

`init()` returns once the scheduler knows all ranks. After a restart it still knows the addresses of
the previous ranks, and the first collective of an early rank fails with "wait sending 1 failed".
Imports mindspore only if the script does.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib.abc
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULE, FUNCTION = "mindspore.communication.management", "init"
# seconds that the others may take to make their groups; then this rank continues, as without taskd
LIMIT = 60.0
_PR_SET_PDEATHSIG = 1


def install() -> None:
    """Make this worker end with its launcher, and wait after `init()`."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    attach()
    sys.meta_path.insert(0, _Finder())


def attach() -> None:
    """Claim the rank's slot in the state page, where its agent sees its end at once, and note
    whether the interpreter ends by itself, so that its exit status counts."""
    page, number = os.environ.get("TASKD_PAGE"), os.environ.get("TASKD_LOCAL_RANK", "")
    if page is None or not number.isdigit():
        return
    from taskd.cython_api import slot

    try:
        if slot.number() is None:  # libtaskd does it where it is preloaded
            slot.attach(page, int(number))
    except (OSError, ValueError) as error:
        _say(f"slot {number} of the state page {page} is not available: {error}")
        return
    os.environ.pop("TASKD_SLOT", None)  # what this worker starts must not claim it
    atexit.register(lambda: slot.progress(0, slot.DONE))


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps `init` in the module, as soon as that is imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        loader = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return spec
        execute = loader.exec_module

        def run(module: ModuleType) -> None:
            execute(module)
            found = getattr(module, FUNCTION, None)
            if callable(found):
                setattr(module, FUNCTION, waiting(found))
            else:
                _say(f"{MODULE} has no {FUNCTION}(): after a restart the first collective may fail")

        loader.exec_module = run  # type: ignore[method-assign]
        return spec


def waiting(init: Callable[..., Any]) -> Callable[..., Any]:
    """`init`, followed by the wait for the other ranks; the first call only."""
    met = False

    @functools.wraps(init)
    def init_and_wait(*args: Any, **kwargs: Any) -> Any:
        nonlocal met
        result = init(*args, **kwargs)
        if not met:
            met = True
            wait()
        return result

    return init_and_wait


def wait() -> None:
    """Report that this rank's process group exists; return when those of all ranks do."""
    from taskd.messages import from_rank, to_rank
    from taskd.worker.communication.agent_client import AgentClient
    from taskd.worker.communication.channel import AgentGone

    rank = os.environ.get("RANK_ID", "")
    if "TASKD_AGENT" not in os.environ or not (rank.isascii() and rank.isdigit()):
        return
    agent = AgentClient(int(rank))
    try:
        agent.connect()
        try:
            agent.report(from_rank.GroupReady)
            while (message := agent.channel.receive(LIMIT)) is not None:
                if isinstance(message, to_rank.GroupsReady | to_rank.Unprotected):
                    return
        finally:
            agent.channel.close()
    except (AgentGone, OSError) as error:
        _say(f"taskd's agent does not answer ({error}); rank {rank} goes on")
        return
    _say(
        f"not all ranks have made their groups within {LIMIT:.0f} s, or no manager runs; rank"
        f" {rank} goes on"
    )


def _say(text: str) -> None:
    print(f"taskd: {text}", file=sys.stderr, flush=True)
