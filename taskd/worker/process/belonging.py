"""Ties this process to its launcher: it claims its slot in the state page, and ends with it.

Imports neither torch nor mindspore.
"""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys

from taskd.cython_api import library, slot
from taskd.worker.communication.channel import Channel

_PR_SET_PDEATHSIG = 1

log = logging.getLogger("taskd.worker")


def attach() -> None:
    """Claim this rank's slot, unless libtaskd did it when it was preloaded."""
    if slot.number() is None:
        if not library.preloaded():
            log.info(
                "libtaskd is not preloaded: the reason for an exit() or abort() will not be"
                " recorded; set LD_PRELOAD to record it"
            )
        slot.attach(os.environ["TASKD_PAGE"], int(os.environ["TASKD_LOCAL_RANK"]))
    os.environ.pop("TASKD_SLOT", None)  # processes that this rank starts must not claim its slot


def dies_with_launcher() -> None:
    """Have the kernel kill this rank when its launcher ends: nothing else could stop it then. The
    main thread of its parent lives as long as the launcher. A forked rank has another parent: see
    `outlive_nobody`."""
    if _launcher() is not None:
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def outlive_nobody(channel: Channel) -> None:
    """In a forked rank, wait for a message; kill this process, whatever it is doing, if the
    launcher ends."""
    launcher = _launcher()
    if launcher is None:
        return
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    poll.register(launcher, select.POLLIN)
    if any(fd == launcher for fd, _ in poll.poll()):
        os.kill(os.getpid(), signal.SIGKILL)


def _launcher() -> int | None:
    """A pidfd of the launcher, in a process forked by the zygote, which has imported the module."""
    replacement = sys.modules.get("taskd.worker.process.replacement")
    return getattr(replacement, "launcher", None)
