"""For accelerators: a thread that takes the training thread out of device work when an interruption
comes.

On a CPU libtaskd cuts the collective library's sockets. A rank that waits for a device kernel is
reached by neither sockets nor signals: its communicators have to be aborted, or the device stopped,
from another thread.
"""

from __future__ import annotations

import logging
import os
import threading

from taskd.cython_api import slot
from taskd.devices import Device

log = logging.getLogger("taskd.worker")

# Set to 0 before our communicators are made: the libraries' own watchdogs would end the process at
# the first failed collective.
WATCHDOGS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "HCCL_ASYNC_ERROR_HANDLING")


class Aborter:
    """Starts with its construction and lives as long as the process."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._done = 0  # number of the last interruption for which the device was stopped
        self._changed = threading.Condition()
        os.environ.update(dict.fromkeys(WATCHDOGS, "0"))
        threading.Thread(target=self._watch, name="taskd-abort", daemon=True).start()

    def _watch(self) -> None:
        while True:
            slot.wait_interruption(self._done)
            interruption = slot.interruption()
            try:
                self._device.abort()
            except Exception:
                log.exception("the device could not be stopped; its work has to end by itself")
            with self._changed:
                self._done = interruption
                self._changed.notify_all()

    def wait(self, interruption: int) -> None:
        """Until the device was stopped for interruption number `interruption`. The coordinator's
        deadline for the interruption bounds it."""
        with self._changed:
            self._changed.wait_for(lambda: self._done >= interruption)
