"""The thread that writes this process's logs and journal, and looks at those of others.

On a network file system whose server is gone, a write takes until the server is back, and nothing
ends it. Then this thread waits, and no other one: training and repairs go on, and what they have
to write is kept by those who write it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
# seconds: a disk under load takes tens of milliseconds, a sync some hundreds; and less than what a
# manager calls standing still (ManagerLimits.stall)
PATIENCE = 0.7
LATE = 0.2  # seconds by which a waiting thread may wake later than it asked for


class _Task(Generic[T]):
    def __init__(self, action: Callable[[], T]) -> None:
        self._action, self.over = action, threading.Event()
        self._returned: list[T] = []
        self._raised: BaseException | None = None

    def carry_out(self) -> None:
        try:
            self._returned.append(self._action())
        except BaseException as error:
            self._raised = error
        self.over.set()

    def result(self) -> T:
        if self._raised is not None:
            raise self._raised
        return self._returned[0]


class FileThread:
    """Started by the first call; a fork has its own."""

    def __init__(self) -> None:
        self._fresh()
        os.register_at_fork(after_in_child=self._fresh)

    def _fresh(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._tasks: queue.SimpleQueue[_Task[Any]] = queue.SimpleQueue()
        self._slow: _Task[Any] | None = None  # the one that nobody waits for any more

    def do(self, action: Callable[[], T]) -> T:
        """Carry out `action` after those before it; returns and raises what it does. One that takes
        longer than PATIENCE goes on by itself: this raises OSError (ETIMEDOUT), and until it is
        over, so does every other call, without doing anything."""
        if self._here():
            return action()
        if self._slow is not None and not self._slow.over.is_set():
            raise _timed_out()
        if sys.is_finalizing():  # it runs no other thread
            return action()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="taskd-files", daemon=True)
                self._thread.start()
        self._tasks.put(task := _Task(action))
        began = time.monotonic()
        while not task.over.wait(PATIENCE):
            if time.monotonic() - began < PATIENCE + LATE:
                self._slow = task
                raise _timed_out()
            began = time.monotonic()  # this process stood still, and its thread with it
        return task.result()

    def _here(self) -> bool:
        return threading.current_thread() is self._thread

    def _run(self) -> None:
        while True:
            self._tasks.get().carry_out()


def _timed_out() -> OSError:
    return OSError(errno.ETIMEDOUT, f"its file system has not answered for {PATIENCE:g} s")


_ours = FileThread()
do = _ours.do


def check(path: str | os.PathLike[str], thread: FileThread = _ours) -> None:
    """Before `path` is used: raises OSError (ETIMEDOUT) if its file system does not answer."""
    with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        thread.do(lambda: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)))


def remedy(error: object, usual: str) -> str:
    """What to do about the error of a write, where it is not one of `do`."""
    if isinstance(error, TimeoutError):
        return "training goes on, and what waits is written when it answers"
    return usual
