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

from taskd.cython_api import damage, slot, sockets

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


def _device() -> ctypes.CDLL | None:
    """The library by which MindSpore's device code tells that an update begins (csrc/mindio); the
    same copy, as it is loaded from the same path."""
    path = Path(__file__).parent / "mindspore_api" / "libttp_c_api.so"
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        log.warning("%s: updates on a device are not seen: %s", path, error)
        return None


class Updates:
    """Used by the training thread and the one that carries out orders."""

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self.step = 0  # updates finished
        self.updating = False
        self.closed = False  # a repair has taken this rank's position
        self.whole = True  # the state is that after `step` updates
        self._device = _device()
        self._built_at = slot.interruption()  # training goes on since this interruption
        self._together = True
        self._accepted = damage.damaged()  # pages that were lost, and whose content was restored

    # -- the training thread -----------------------------------------------------------------------

    def begin(self) -> None:
        """Raises Stopped, RuntimeError."""
        self.look_at_memory()
        with self._changed:
            if self.closed:
                raise Stopped
            if sockets.torn():  # gloo's collectives returned, and what they gave is not whole
                raise RuntimeError(f"{TORN}: what this step has received must not be used")
            self.updating = True
        if not self._come():
            with self._changed:
                self.updating = False
                self._changed.notify_all()
            raise Stopped
        slot.progress(self.step, slot.UPDATING)

    def _come(self) -> bool:
        """Whether the ranks of this node begin the update."""
        try:
            return not self._together or slot.together(
                self.step, self._built_at, round(TOGETHER * 1e3)
            )
        except TimeoutError:
            log.warning(
                "not all ranks of this node began update %d within %.0f s: from now on this rank"
                " does not wait for them",
                self.step + 1,
                TOGETHER,
            )
            self._together = False
            return True

    def end(self, step: int) -> None:
        """Raises RuntimeError."""
        if type(step) is not int or step < 1:
            raise ValueError(f"tft_end_updating_os: step is {step!r}; it must be 1 or more")
        lost = self.lost
        if self._device is not None:
            self._device.MindioTtpSetOptimStatusFinished()
        with self._changed:
            self.updating, self.step = False, step
            self.whole = self.whole and not lost and not sockets.torn()
            self._changed.notify_all()
        slot.progress(step, slot.COMMITTED)
        self.look_at_memory()

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
        on_device = self._device is not None and self._device.taskd_optimizer_updates()
        return self.updating or bool(on_device)

    # -- repairs -----------------------------------------------------------------------------------

    def close(self, limit: float) -> bool:
        """Wait until no update is under way, and let none begin. False if it takes longer than
        `limit` seconds: then the state is not whole."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self.under_way, limit)
            self.closed = True
            self.whole = self.whole and done and not self.lost
            return done

    def open(self, step: int, interruption: int) -> None:
        """The state is that after `step` updates; training continues."""
        self._built_at = interruption
        self._accepted = damage.damaged()
        damage.accept(self._accepted)
        if self._device is not None:
            self._device.MindioTtpSetOptimStatusFinished()
        with self._changed:
            self.step, self.updating, self.closed, self.whole = step, False, False, True
            self._changed.notify_all()
        slot.progress(step, slot.COMMITTED)
