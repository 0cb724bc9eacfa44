"""Connections of former generations that gloo still polls.

A message whose header has arrived waits in its connection until its receiver is ready. If the
connection is cut before that, the receiver never comes, and gloo neither reads on nor closes: its
loop thread is woken without end, at the cost of a core. The backend is not destroyed, so the
connection is taken out of gloo's epoll set instead.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat

EVENTPOLL = "anon_inode:[eventpoll]"


def note(descriptors: list[int]) -> dict[int, int]:
    """Descriptor -> inode of the connections that are about to be left."""
    found = {}
    for fd in descriptors:
        with contextlib.suppress(OSError):
            found[fd] = os.fstat(fd).st_ino
    return found


def release(left: dict[int, int]) -> int:
    """Have this process poll none of the connections in `left` that are still open; returns how
    many those are. Call it when the next generation is connected: whatever gloo closes by itself
    has been closed by then."""
    stale = []
    for fd, inode in left.items():
        with contextlib.suppress(OSError):
            status = os.fstat(fd)
            if status.st_ino == inode and stat.S_ISSOCK(status.st_mode):
                stale.append(fd)
    for poll in _polls() if stale else ():
        with contextlib.closing(poll):
            for fd in stale:
                with contextlib.suppress(OSError):  # not one of this set's
                    poll.unregister(fd)
    return len(stale)


def _polls() -> list[select.epoll]:
    """The epoll sets of this process, each under a descriptor of its own."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == EVENTPOLL:
                found.append(select.epoll.fromfd(os.dup(int(name))))
    return found
