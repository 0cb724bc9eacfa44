"""Things that other threads want done by the thread that waits on sockets."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable

Action = Callable[[], object]


class Mailbox:
    """Ready for reading, in the owner's poll, when there is something to do. Descriptors are not
    closed: a thread may still put something in when the owner has left."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._read

    @property
    def empty(self) -> bool:
        return self._actions.empty()

    def put(self, action: Action) -> None:
        """By any thread, a signal handler's too."""
        self._actions.put(action)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full: the owner will wake
            os.write(self._write, b"\0")

    def carry_out(self) -> None:
        """By the owner: everything that is there. What comes after an action that raises is done at
        the next turn."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        try:
            while not self._actions.empty():
                self._actions.get()()
        except BaseException:
            self._wake()
            raise
