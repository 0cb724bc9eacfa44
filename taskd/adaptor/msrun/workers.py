"""The workers of this node, by the functions that msrun has registered."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from taskd.agent.ranks import pidfd

OPERATORS = ("KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR")
ALL = [-1]
LAST = 65536  # bytes of a log in which its traceback is looked for
DYING = 30.0  # seconds that killed workers may take to free their memory

log = logging.getLogger("taskd.agent")


class NotUsable(RuntimeError):
    """msrun's functions are missing, or do not do what they should."""


class Workers:
    """Used by msrun's main thread: a worker is killed when the thread that started it ends."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """Raises NotUsable."""
        if missing := [name for name in OPERATORS if name not in functions]:
            raise NotUsable(
                f"msrun has not registered {', '.join(missing)}; call register_func for each of"
                f" {', '.join(OPERATORS)} before start_taskd_agent"
            )
        self._functions = functions
        self._logs: dict[int, Path] = {}  # by local rank; of the processes started last
        self._pids: dict[int, int] = {}

    def ranks(self) -> dict[int, int]:
        """The rank of each local rank. Raises NotUsable."""
        found = self._functions["MONITOR"](ALL)
        try:
            ranks = {int(local): int(entry["global_rank"]) for local, entry in found.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise NotUsable(
                f"MONITOR([-1]) returned {found!r}; it must be a dict of dicts with global_rank, by"
                " local rank"
            ) from None
        if not ranks:
            raise NotUsable("MONITOR([-1]) returned no rank: msrun has no workers on this node")
        return ranks

    def start(self, local: int, environment: Mapping[str, str]) -> int:
        """Start a worker; returns its pid. Raises NotUsable."""
        with _set(environment):  # a worker inherits msrun's environment
            self._functions["START_WORKER_LIST"]([local])
        entry = self._functions["MONITOR"]([local])[local]
        pid = entry["pid"]
        if type(pid) is not int or pid <= 0:
            raise NotUsable(f"START_WORKER_LIST([{local}]) has started no process: {entry!r}")
        self._pids[local] = pid
        with contextlib.suppress(OSError):
            path = Path(os.readlink(f"/proc/{pid}/fd/1"))
            if path.is_file():
                self._logs[local] = path
        return pid

    def kill(self) -> None:
        """Kill all workers with the processes that they have started, and wait for their ends."""
        ends = [fd for pid in self._pids.values() if (fd := pidfd(pid)) is not None]
        for pid in self._pids.values():
            # msrun does not kill what a dead worker leaves behind
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        due = time.monotonic() + DYING
        for fd in ends:
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            poll.poll(max(due - time.monotonic(), 0.0) * 1000)
            os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            self._functions["KILL_WORKER"](ALL)  # empties msrun's lists
        self._pids.clear()

    def traceback(self, local: int) -> str:
        """The traceback at the end of a worker's log; "" if there is none."""
        try:
            with open(self._logs[local], "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(size - LAST, 0))
                text = file.read(LAST).decode(errors="replace")
        except (KeyError, OSError):
            return ""
        _, found, after = text.rpartition("Traceback (most recent call last):")
        return found + after if found else ""

    def keep_logs(self, epoch: int) -> None:
        """Rename the logs of epoch `epoch`'s workers: msrun truncates a log when it starts a worker
        again."""
        for path in self._logs.values():
            kept = path.with_name(f"{path.stem}.{epoch}{path.suffix}")
            try:
                path.rename(kept)
            except OSError as error:
                log.warning("%s is not kept: %s", path, error)
            else:
                log.info("the log of the workers before is %s", kept)
        self._logs.clear()


@contextlib.contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
