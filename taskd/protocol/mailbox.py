"""Actions that other threads hand to the thread that polls sockets."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable

Action = Callable[[], object]


class Mailbox:
    """A queue of actions, readable in the owner's poll while it is not empty. Its descriptors are
    never closed: a thread may still `put` after the owner has left."""

    def __init__(self) -> None:
        self._actions: queue.SimpleQueue[Action] = queue.SimpleQueue()
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def fileno(self) -> int:
        return self._read

    @property
    def empty(self) -> bool:
        return self._actions.empty()

    def put(self, action: Action) -> None:
        """Queue an action, from any thread or a signal handler."""
        self._actions.put(action)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # the pipe is full: the owner will wake
            os.write(self._write, b"\0")

    def carry_out(self) -> None:
        """Run all queued actions, in the owner's thread. If one raises, the rest run at the next
        turn."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        try:
            while not self._actions.empty():
                self._actions.get()()
        except BaseException:
            self._wake()
            raise
