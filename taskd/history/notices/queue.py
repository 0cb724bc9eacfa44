"""Delivers notices in the background: a thread and a bounded queue per target, so that one that
hangs delays nothing else."""

from __future__ import annotations

import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from taskd.history.notices.content import Notice

WAITING = 100  # notices; beyond these, rely on the metrics
TIME = 10.0  # seconds for a delivery
AGAIN = 1.0  # seconds before the second try, of two
# seconds that a manager waits at its end. Its launcher waits 5 s for it, of which its last
# messages take up to 1 s.
DRAIN = 3.0
SAY_EVERY = 60.0  # seconds between two lines about failures of a target
DELIVERED, FAILED, DROPPED = RESULTS = ("delivered", "failed", "dropped")

log = logging.getLogger("taskd.manager.notify")


class Failed(Exception):
    """A notice could not be delivered. `again`: a second try may have more success."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


class Delivery(Protocol):
    """One way to deliver a notice."""

    @property
    def name(self) -> str:
        """For the log; contains no secret."""

    def deliver(self, payload: bytes, seconds: float) -> None:
        """Deliver it within that time. Raises Failed."""

    def abandon(self) -> None:
        """Make a delivery under way fail at once. Called in another thread."""


class Target:
    def __init__(self, delivery: Delivery, seconds: float = TIME, waiting: int = WAITING) -> None:
        self._delivery, self._seconds = delivery, seconds
        self._queue: queue.Queue[bytes | None] = queue.Queue(waiting)
        self._closing = threading.Event()
        self._said, self._more = -SAY_EVERY, 0
        self.results = dict.fromkeys(
            RESULTS, 0
        )  # the first two change in the thread, as whole ints
        self._thread = threading.Thread(target=self._run, name="notices", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, payload: bytes) -> None:
        """Never waits."""
        try:
            self._queue.put_nowait(payload)
        except queue.Full:
            self.results[DROPPED] += 1

    def finish(self) -> None:
        """Deliver the waiting notices, trying each once; no more will come."""
        self._closing.set()
        with contextlib.suppress(queue.Full):  # then it ends with the last of them
            self._queue.put_nowait(None)

    def join(self, deadline: float) -> bool:
        self._thread.join(max(deadline - time.monotonic(), 0.0))
        return not self._thread.is_alive()

    def abandon(self) -> int:
        """Give up; returns how many notices are not delivered."""
        left = 0
        with contextlib.suppress(queue.Empty):
            while True:
                left += self._queue.get_nowait() is not None
        self._delivery.abandon()
        return left

    def _run(self) -> None:
        while True:
            if self._closing.is_set() and self._queue.empty():
                return
            payload = self._queue.get()
            if payload is None:
                return
            self._deliver(payload)

    def _deliver(self, payload: bytes) -> None:
        for last in (False, True):
            try:
                self._delivery.deliver(payload, self._seconds)
            except Failed as error:
                # the manager must not wait twice for a target that hangs
                if last or not error.again or self._closing.wait(AGAIN):
                    self._failed(str(error))
                    return
            except Exception as error:
                log.exception("notices to %s: a defect", self._delivery.name)
                self._failed(str(error))
                return
            else:
                self.results[DELIVERED] += 1
                return

    def _failed(self, why: str) -> None:
        self.results[FAILED] += 1
        now = time.monotonic()
        if now - self._said < SAY_EVERY:
            self._more += 1
            return
        more = f"; {self._more} others before" if self._more else ""
        self._said, self._more = now, 0
        log.warning("a notice to %s was not delivered: %s%s", self._delivery.name, why, more)


class Targets:
    def __init__(self, targets: Iterable[Target], hide: Callable[[str], str] = str) -> None:
        """`hide`: removes secrets from a text."""
        self._targets, self._hide = tuple(targets), hide

    def start(self) -> None:
        for target in self._targets:
            target.start()

    def send(self, notice: Notice) -> None:
        payload = self._hide(json.dumps(notice, separators=(",", ":"))).encode()
        for target in self._targets:
            target.put(payload)

    @property
    def results(self) -> dict[str, int]:
        return {r: sum(target.results[r] for target in self._targets) for r in RESULTS}

    def close(self, seconds: float = DRAIN) -> None:
        """Deliver the waiting notices, for at most `seconds` for all targets together."""
        deadline = time.monotonic() + seconds
        for target in self._targets:
            target.finish()
        late = [target for target in self._targets if not target.join(deadline)]
        left = sum(target.abandon() for target in late)
        if late:
            log.warning(
                "%d targets of notices had not answered %g s after the end; %d notices are left",
                len(late),
                seconds,
                left,
            )
