"""Tracks for repairs which updates this rank has finished, and whether its state is whole.

The framework reports when it begins to change its parameters and when it is done. In between,
memory holds neither the old state nor the new one. So a repair takes the rank's position only after
the update; from then on no update begins until training continues.

Either all ranks begin an update, or none. Frameworks put a barrier before it, but a rank that dies
inside the barrier may have let some others pass. So the ranks of a node begin together: they count
themselves in the state page, and an interruption before the last one arrives stops them all.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from pathlib import Path

from taskd.cython_api import damage, slot

# seconds that the other ranks of the node may take to arrive after a barrier; a framework in which
# not all of them take part would otherwise wait forever
TOGETHER = 10.0

# the error of a device whose links have failed; frameworks recognize it by its first words
TORN = "SUSPECT REMOTE ERROR: a connection broke in the middle of a message"

log = logging.getLogger("taskd.worker")


class Stopped(RuntimeError):
    """The training thread has to stop because the rank takes part in a repair. Frameworks recognize
    it by its text."""

    def __init__(self, text: str = "FORCE STOP") -> None:
        # MindSpore looks for the second name
        super().__init__(f"{text}: ForceStopError: taskd has stopped this rank for a repair")


def _device() -> ctypes.c_int:
    """Set while MindSpore's device code writes parameters, by a library that it calls: see
    csrc/mindio. The same copy, as it is loaded from the same path."""
    path = Path(__file__).parent / "mindspore_api" / "libttp_c_api.so"
    try:
        return ctypes.c_int.in_dll(ctypes.CDLL(str(path)), "taskd_optimizer_updates")
    except (OSError, ValueError) as error:
        log.warning("%s: updates on a device are not seen: %s", path, error)
        return ctypes.c_int(0)


class Updates:
    """Used by the training thread and the one that carries out orders.

    An update is two calls in each step, so they take no lock: each thread first sets what it does,
    `updating` or `closed`, and then looks at the other's. Whoever finds both gives way, or waits.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.step = 0  # updates finished
        self.updating = False
        self.closed = False  # a repair takes, or has taken, this rank's position
        self.whole = True  # the state is that after `step` updates
        self._device = _device()
        self._built_at = slot.interruption()  # training goes on since this interruption
        self._patience_ms = round(TOGETHER * 1e3)
        self._accepted = damage.damaged()  # pages that were lost, and whose content was restored

    # -- the training thread -----------------------------------------------------------------------

    def begin(self) -> None:
        """Raises Stopped, RuntimeError."""
        self.updating = True
        if self.closed:
            self._end()
            self.look_at_memory()
            raise Stopped
        begun = self._begin()
        if begun == slot.BEGUN:
            return
        self._end()
        if begun == slot.LOST:
            self.look_at_memory()
        if begun == slot.TORN:  # gloo's collectives returned, and what they gave is not whole
            raise RuntimeError(f"{TORN}: what this step has received must not be used")
        raise Stopped

    def _begin(self) -> int:
        try:
            return slot.begin_update(self.step, self._built_at, self._accepted, self._patience_ms)
        except TimeoutError:
            log.warning(
                "not all ranks of this node began update %d within %.0f s: from now on this rank"
                " does not wait for them",
                self.step + 1,
                TOGETHER,
            )
            self._patience_ms = -1
            return self._begin()

    def end(self, step: int) -> None:
        """Raises RuntimeError."""
        if type(step) is not int or step < 1:
            raise ValueError(f"tft_end_updating_os: step is {step!r}; it must be 1 or more")
        lost, torn = slot.end_update(step, self._accepted)
        if self._device.value:
            self._device.value = 0
        if lost or torn:
            self.whole = False
        self.step = step
        self._end()
        if lost:
            self.look_at_memory()

    def _end(self) -> None:
        self.updating = False
        if self.closed:
            with self._changed:
                self._changed.notify_all()

    @property
    def lost(self) -> bool:
        """Whether a memory page was lost since the last repair."""
        return bool(damage.damaged() != self._accepted)

    def look_at_memory(self) -> None:
        """Raise the error of a device with failed memory, if a page of this process was lost."""
        if self.lost:
            raise RuntimeError("UCE ERROR: a memory page of this process was lost")

    @property
    def under_way(self) -> bool:
        """Whether parameters are being changed, as reported by the script or the device's code."""
        return self.updating or bool(self._device.value)

    # -- repairs -----------------------------------------------------------------------------------

    def close(self, limit: float) -> bool:
        """Wait until no update is under way, and let none begin. False if it takes longer than
        `limit` seconds: then the state is not whole."""
        with self._changed:
            self.closed = True
            done = self._changed.wait_for(lambda: not self.under_way, limit)
            self.whole = self.whole and done and not self.lost
            return done

    def open(self, step: int, interruption: int) -> None:
        """The state is that after `step` updates; training continues."""
        self._built_at = interruption
        self._accepted = damage.damaged()
        damage.accept(self._accepted)
        self._device.value = 0
        with self._changed:
            self.step, self.updating, self.closed, self.whole = step, False, False, True
            self._changed.notify_all()
        slot.progress(step, slot.COMMITTED)
