"""Threads, conditions and queues that take turns on a simulated clock: the stand-in for ClusterD
with its real waits, of minutes, in a millisecond, and the same way each time.

One thread runs at a time, and gives up its turn where it waits. So no lock is needed, and whoever
plays the clock decides what happens when.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Closed(BaseException):
    """Ends a thread that waits."""


class VirtualTime:
    """`after(seconds, action)` has the clock call `action`; `now()` is its time."""

    def __init__(
        self, after: Callable[[float, Callable[[], None]], None], now: Callable[[], float]
    ) -> None:
        self.after, self.now = after, now
        self.turns: list[_Turn] = []
        self.running: _Turn | None = None
        self.closed = False
        # in place of the modules of these names
        self.threading = SimpleNamespace(Thread=self._thread, Condition=self.condition)
        self.queue = SimpleNamespace(Queue=self._queue)
        self.time = SimpleNamespace(monotonic=now)

    def spawn(self, target: Callable[..., Any], *args: Any) -> None:
        turn = _Turn(self, lambda: target(*args))
        self.turns.append(turn)
        self.after(0.0, turn.go)

    def close(self) -> None:
        """End all threads."""
        self.closed = True
        for turn in self.turns:
            turn.go()

    def condition(self) -> _Condition:
        return _Condition(self)

    def _thread(self, target: Callable[..., Any], args: tuple[Any, ...] = (), **_: Any) -> Any:
        return SimpleNamespace(start=lambda: self.spawn(target, *args))

    def _queue(self) -> _Queue:
        return _Queue(self)


class _Turn:
    """A thread, which runs between `go` and its next wait."""

    def __init__(self, clock: VirtualTime, target: Callable[[], Any]) -> None:
        self._clock, self._target = clock, target
        self._may, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.over = False

    def go(self) -> None:
        """Let it run until it waits or ends. Raises what it raised."""
        if self.over or (self._thread is None and self._clock.closed):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        before, self._clock.running = self._clock.running, self
        self._may.release()
        self._done.acquire()
        self._clock.running = before
        if self.over:
            self._thread.join()
            self._clock.turns.remove(self) if not self._clock.closed else None
        if self._error is not None:
            raise self._error

    def rest(self) -> None:
        """Called by the thread itself: give up the turn."""
        self._done.release()
        self._may.acquire()
        if self._clock.closed:
            raise Closed

    def _run(self) -> None:
        self._may.acquire()
        try:
            if not self._clock.closed:
                self._target()
        except Closed:
            pass
        except BaseException as error:
            self._error = error
        self.over = True
        self._done.release()


class _Condition:
    def __init__(self, clock: VirtualTime) -> None:
        self._clock = clock
        self._waiting: list[_Turn] = []

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def notify_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for turn in waiting:
            self._clock.after(0.0, turn.go)

    def wait(self, timeout: float | None = None) -> None:
        self._rest(None if timeout is None else self._clock.now() + timeout)

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        due = None if timeout is None else self._clock.now() + timeout
        while not (found := predicate()):
            if due is not None and self._clock.now() >= due:
                return found
            self._rest(due)
        return found

    def _rest(self, due: float | None) -> None:
        turn = self._clock.running
        assert turn is not None, "the clock itself must not wait"
        self._waiting.append(turn)
        if due is not None:

            def wake() -> None:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    turn.go()

            self._clock.after(due - self._clock.now(), wake)
        turn.rest()


class _Queue:
    def __init__(self, clock: VirtualTime) -> None:
        self._items: list[Any] = []
        self._changed = _Condition(clock)

    def put(self, item: Any) -> None:
        self._items.append(item)
        self._changed.notify_all()

    def get(self) -> Any:
        self._changed.wait_for(lambda: self._items)
        return self._items.pop(0)
