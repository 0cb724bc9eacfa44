"""Copies memory of a device that runs late to the host, beside the work that training queues.

One thread with a stream of its own. A copy begins once the device has done what was queued before
`copy` was called; training goes on meanwhile. The copy runs at the speed of the link where the
host's memory is registered with the device's driver, else through the driver's own buffers.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from taskd.devices.device import Device
from taskd.worker.state import gathering

log = logging.getLogger("taskd.worker")


class _Copy(NamedTuple):
    does: Callable[[], None]
    into: Sequence[torch.Tensor]
    behind: list[Any]  # events
    done: Callable[[bool], None]


class Publisher:
    """Use it from one thread. Memory that is about to be unmapped or given back is `release`d
    first."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._module: Any = torch.get_device_module(device.device)
        self._copies: queue.SimpleQueue[_Copy] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._thread: threading.Thread | None = None
        self._registered: Sequence[torch.Tensor] = ()
        self._refused = False  # the driver registers no such memory
        self._streams: list[Any] = []  # others than the present one, in which training has updated
        # a thread that comes back from the driver to an interpreter that has ended would abort it
        atexit.register(self._idle.wait, 2.0)

    def updates(self) -> None:
        """Training is about to change its state in the present stream."""
        stream = self._module.current_stream()
        if stream not in self._streams:
            self._streams.append(stream)

    def copy(
        self,
        does: Callable[[], None],
        into: Sequence[torch.Tensor],
        done: Callable[[bool], None],
    ) -> None:
        """Call `does` in the thread, which queues copies into memory of `into`: they read what
        there is once all is done that training has queued so far. Then call `done`: whether they
        have been carried out. It is not called where an interruption came first. Waits for the last
        copy."""
        self.wait()
        self.updates()
        behind = []
        for stream in self._streams:
            event = self._module.Event()
            event.record(stream)
            behind.append(event)
        self._streams.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd-publisher", daemon=True)
            self._thread.start()
        self._idle.clear()
        self._copies.put(_Copy(does, into, behind, done))

    def wait(self) -> None:
        """Wait until no copy is under way."""
        self._idle.wait()

    def release(self) -> None:
        """Nothing of the host's memory is registered any more, and no copy is under way."""
        self.wait()
        registered, self._registered = self._registered, ()
        for row in registered:
            self._device.unregister(row)

    def _run(self) -> None:
        self._module.set_device(self._device.device)
        stream = self._module.Stream()
        with self._module.stream(stream):
            while True:
                copy = self._copies.get()
                try:
                    self._carry_out(copy, stream)
                except Exception:
                    log.exception("what was copied from the device could not be published")
                    with contextlib.suppress(Exception):
                        copy.done(False)
                finally:
                    del copy  # it holds tensors
                    self._idle.set()

    def _carry_out(self, copy: _Copy, stream: Any) -> None:
        failed: RuntimeError | None = None
        try:
            self._register(copy.into)
            for event in copy.behind:
                stream.wait_event(event)
            copy.does()
            copied = self._module.Event(blocking=True)
            copied.record(stream)
            copied.synchronize()
        except RuntimeError as error:  # training meets it too, if it is the device's
            failed = error
        # a device may have dropped the copy, and said nothing: an abort follows an interruption. A
        # fault of the device is training's to meet: until then nobody may update
        if gathering.interrupted() or (failed and self._device.recognise(failed) is not None):
            return
        if failed is not None:
            log.warning("this step's copy for the other ranks of the node has failed: %s", failed)
        copy.done(failed is None)

    def _register(self, rows: Sequence[torch.Tensor]) -> None:
        if self._refused or rows is self._registered:
            return
        registered, self._registered = self._registered, rows
        for row in registered:
            self._device.unregister(row)
        for number, row in enumerate(rows):
            if why := self._device.register(row):
                self._refused, self._registered = True, rows[:number]
                log.info("stripes are copied through the driver's own buffers, slower: %s", why)
                return
