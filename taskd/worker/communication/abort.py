"""For accelerators: a thread that gets the training thread out of device work on an interruption.

On a CPU libtaskd cuts the collective library's sockets. Neither sockets nor signals reach a rank
that waits for a device kernel: another thread has to abort its communicators or stop the device.
"""

from __future__ import annotations

import logging
import os
import threading

from taskd.cython_api import slot
from taskd.devices import Device

log = logging.getLogger("taskd.worker")

# Set to 0 before taskd's communicators are made: the libraries' watchdogs would end the process at
# the first failed collective.
WATCHDOGS = ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "HCCL_ASYNC_ERROR_HANDLING")


class Aborter:
    """Aborts device work on each interruption; runs from its construction until the process
    ends."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._done = 0  # the last interruption handled
        # A new process takes part in nothing that could be cut: its device is left alone, on which
        # the script's set-up works, until its first communicators are built.
        self.armed = False
        self._changed = threading.Condition()
        os.environ.update(dict.fromkeys(WATCHDOGS, "0"))
        threading.Thread(target=self._watch, name="taskd-abort", daemon=True).start()

    def _watch(self) -> None:
        while True:
            slot.wait_interruption(self._done)
            interruption = slot.interruption()
            try:
                if self.armed:
                    self._device.abort()
            except Exception:
                log.exception("the device could not be stopped; its work must end by itself")
            with self._changed:
                self._done = interruption
                self._changed.notify_all()

    def wait(self, interruption: int) -> None:
        """Wait until the device has been stopped for interruption number `interruption`; the
        coordinator's deadline bounds the wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._done >= interruption)
