"""Ends what a rank has started, once the rank is dead: its data loaders' workers, its Manager, its
side programs.

A child belongs to the rank's process if it is in the session that the process led, or if its
initial environment has the rank's marks. So a child that begins its own session still belongs to
it, unless it also drops the marks, which is how a script starts something that is to live on. A
dead process's children become the launcher's (see processes.py), so only the launcher's children
have to be examined and, while the process is still being torn down, its own. Children are signaled
through pidfds, after the check, so a process that reuses a dead one's pid is never hit.

They are killed at once: the replacement may need their port, and a resource tracker (of
multiprocessing) would remove shared memory that other ranks and the replacement use by name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from taskd.agent.ranks import threads
from taskd.agent.ranks.model import Epoch
from taskd.process_title import MARKS

log = logging.getLogger("taskd.agent")

# seconds to wait for killed children; the kernel needs 0.1-0.3 s per GiB. After that the
# replacement is started in any case
GONE = 5.0
# seconds that children get to clean up at the end of all ranks; it takes ~0.1 s
CLEANING = 1.0
# torch's (the sharing strategy file_system): removes what dead processes shared, and then ends
_REMOVES = b"torch_shm_manag"


def marks(epoch: Epoch, *more: int) -> frozenset[bytes]:
    """The environment entries that mark children of one process of a rank, or of all. `more`: its
    local rank and incarnation."""
    values = (os.fspath(epoch.directory), *map(str, more))
    return frozenset(os.fsencode(f"{k}={v}") for k, v in zip(MARKS, values, strict=False))


@dataclass
class _Search:
    """Searches for the children of one process of a rank, or of all ranks of an epoch."""

    sessions: frozenset[int]
    marks: frozenset[bytes]
    parents: tuple[int, ...]  # besides this process
    done: bool = False
    then: list[Callable[[], None]] = field(default_factory=list)
    # pidfd -> pid and name
    ended: dict[int, tuple[int, str]] = field(default_factory=dict)

    def found(self) -> Iterator[tuple[int, int, bytes]]:
        """Pidfd, pid and name of each child that lives and was not found before."""
        known = {pid for pid, _ in self.ended.values()} | self.sessions
        for pid in self._candidates():
            if pid in known or not self._belongs(pid):
                continue
            with contextlib.suppress(OSError):
                fd = os.pidfd_open(pid)
                # still the same process?
                if self._belongs(pid) and (name := _name(pid)) != _REMOVES:
                    yield fd, pid, name
                else:
                    os.close(fd)

    def _candidates(self) -> Iterator[int]:
        # theirs first: a child that moves to this process meanwhile is found there
        for parent in self.parents:
            yield from _children(parent)
        # the kernel hands orphans to the main thread
        yield from _children(os.getpid(), os.getpid())

    def _belongs(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            if os.getsid(pid) in self.sessions:
                return True
            environment = Path(f"/proc/{pid}/environ").read_bytes()
            return self.marks <= set(environment.split(b"\0"))
        return False

    def end(self, seconds: float) -> list[str]:
        """Kill the children and wait at most `seconds` until they are gone; returns the remaining
        ones."""
        due = time.monotonic() + seconds
        while True:
            more = False
            for fd, pid, name in self.found():
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
                more, self.ended[fd] = True, (pid, name.decode(errors="replace"))
            left = [fd for fd in self.ended if not _over(fd, due - time.monotonic())]
            # their own children are ours now
            if not more or left:
                return [f"{name} ({pid})" for pid, name in (self.ended[fd] for fd in left)]


class Children:
    """`later` runs an action in the agent's thread, which alone uses this, except where noted."""

    def __init__(self, later: Callable[[Callable[[], None]], None]) -> None:
        self._later = later
        self._lock = threading.Lock()
        self._searches: dict[frozenset[bytes], _Search] = {}  # by the marks
        self._dead: list[int] = []  # pidfds of killed ones that may still have to be reaped

    def end(self, of: frozenset[bytes], session: int, *parents: int) -> None:
        """End the children of a rank's dead process, unless already done. `of`: its marks;
        `parents`: the process and, under a wrapper, the one inside. From any thread."""
        if (search := self._claim(of, session, parents)) is not None:
            self._run(search)

    def begin_to_end(self, of: frozenset[bytes], session: int, *parents: int) -> None:
        """The same, in a separate thread."""
        if (search := self._claim(of, session, parents)) is not None:
            threads.run("taskd-children", lambda: self._run(search))

    def once_ended(self, of: frozenset[bytes], session: int, action: Callable[[], None]) -> None:
        """Run `action` once those children are gone."""
        self.begin_to_end(of, session, session)
        search = self._searches[of]
        if search.done:
            action()
        else:
            search.then.append(action)

    def _claim(
        self, of: frozenset[bytes], session: int, parents: tuple[int, ...]
    ) -> _Search | None:
        with self._lock:
            if of in self._searches:
                return None
            search = _Search(frozenset({session}), of, tuple(dict.fromkeys(parents)))
            self._searches[of] = search
            return search

    def _run(self, search: _Search) -> None:
        try:
            self._say(search, search.end(GONE))
        except Exception:
            log.exception("children of a dead rank could not be ended")
        self._later(lambda: self._finish(search))

    def _finish(self, search: _Search) -> None:
        search.done = True
        self._dead += search.ended
        search.ended = {}
        self.reap()
        for action in search.then:
            action()
        search.then.clear()

    @staticmethod
    def _say(search: _Search, left: list[str]) -> None:
        if search.ended:
            names = ", ".join(f"{name} ({pid})" for pid, name in search.ended.values())
            log.info("killed what a dead rank had started: %s", names)
        if left:
            log.warning("not gone %g s after SIGKILL: %s", GONE, ", ".join(left))

    def reap(self) -> None:
        """Reap killed children that have become ours; called every few seconds."""
        self._dead = [fd for fd in self._dead if not _reaped(fd)]

    def end_all(self, epoch: Epoch, told: bool = False) -> None:
        """All ranks of the epoch are dead or about to die: end their children, with a moment for
        those that end by themselves, or by SIGTERM if they are `told`. Called by the launcher's
        thread."""
        search = _Search(
            frozenset(r.pid for r in epoch.ranks.values() if r.pid),
            marks(epoch),
            (),
        )
        waiting = [fd for fd, _, _ in search.found()]
        for fd in waiting if told else ():
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(fd, signal.SIGTERM)
        due = time.monotonic() + CLEANING
        for fd in waiting:
            _over(fd, due - time.monotonic())
        self._say(search, search.end(GONE))
        for fd in (*waiting, *search.ended):
            if not _reaped(fd):
                os.close(fd)
        with self._lock:
            self._searches = {}


def _children(parent: int, *threads: int) -> Iterator[int]:
    """The children of a process's threads (by default all), the main thread's first."""
    with contextlib.suppress(OSError):
        for thread in threads or sorted(map(int, os.listdir(f"/proc/{parent}/task"))):
            with contextlib.suppress(OSError):
                yield from map(
                    int, Path(f"/proc/{parent}/task/{thread}/children").read_text().split()
                )


def _name(pid: int) -> bytes:
    return Path(f"/proc/{pid}/comm").read_bytes().strip()


def _over(fd: int, seconds: float) -> bool:
    """Wait until the process of a pidfd has ended and its files and ports are closed."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(seconds, 0.0) * 1000))


def _reaped(fd: int) -> bool:
    """Reap the process of a pidfd if it is our child; close the pidfd once the process is gone."""
    with contextlib.suppress(ChildProcessError):
        if os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG) is None:
            return False
        os.close(fd)
        return True
    try:  # another's: a rank's that is still being torn down, or already reaped
        signal.pidfd_send_signal(fd, 0)
    except ProcessLookupError:
        os.close(fd)
        return True
    return False
