"""For accelerators: a thread that takes the training thread out of device work when a pause comes.

On a CPU libtaskd cuts the collective library's sockets. A rank that waits for a device kernel is reached by neither sockets nor signals:
its communicators have to be aborted, or the device stopped, from another thread.
"""

from __future__ import annotations

import logging
import threading

from taskd.cython_api import core
from taskd.worker.conversation import Conversation

log = logging.getLogger("taskd.worker")


def start(line: Conversation) -> None:
    threading.Thread(target=_watch, args=(line,), name="taskd-abort", daemon=True).start()


def _watch(line: Conversation) -> None:
    while True:
        line.rebuilt.clear()
        era = line.era
        core.wait_pause(era)
        if line.era == era:  # else communicators of a newer era stand already
            try:
                line.device.abort()
            except Exception:
                log.exception("the device could not be stopped; its work has to end by itself")
            line.rebuilt.wait()
