"""The workers of this node, by the functions that msrun has registered."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from taskd.agent.ranks.model import pidfd

OPERATORS = ("KILL_WORKER", "START_ALL_WORKER", "START_WORKER_LIST", "MONITOR")
ALL = [-1]
LAST = 65536  # bytes of a log in which its traceback is looked for
DYING = 30.0  # seconds that killed workers may take to free their memory

log = logging.getLogger("taskd.agent")


class NotUsable(RuntimeError):
    """msrun's functions are missing, or do not do what they should."""


@dataclass(frozen=True)
class Program:
    """What a worker runs, read off its process: the arguments are those after the interpreter."""

    arguments: tuple[str, ...]
    environment: dict[str, str]
    log: str


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
        # by local rank; None: a zygote cannot fork it
        self.programs: dict[int, Program | None] = {}

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
        self.programs.pop(local, None)
        return pid

    def learn(self, local: int) -> None:
        """Note what a worker runs, unless it is known. The worker must be running its script: for a
        moment after its start /proc shows no command."""
        if local not in self.programs and (pid := self._pids.get(local)) is not None:
            with contextlib.suppress(OSError):
                self.programs[local] = _program(pid, self._logs.get(local))

    def kill(self, forked: Mapping[int, int]) -> None:
        """Kill all workers with the processes that they have started, and wait for their ends.
        `forked`: pids of those that msrun did not start, by local rank."""
        self._pids.update(forked)
        ends = [fd for pid in self._pids.values() if (fd := pidfd(pid)) is not None]
        for pid in self._pids.values():
            # msrun does not kill what a dead worker leaves behind
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        for fd in ends:  # one that has just been forked has no group yet
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, signal.SIGKILL)
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
            _keep(path, str(epoch))
        self._logs.clear()

    def keep_log(self, local: int, epoch: int, incarnation: int) -> None:
        """The same for one worker that is replaced."""
        if (path := self._logs.pop(local, None)) is not None:
            _keep(path, f"{epoch}.{incarnation}")


def _program(pid: int, log: Path | None) -> Program | None:
    """What that process runs, if a zygote can fork it: a script or module of this interpreter that
    writes to a file. Raises OSError if it has ended, or has no command yet."""
    command = os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")[:-1]
    if not command:
        raise ProcessLookupError(pid)
    block = os.fsdecode(Path(f"/proc/{pid}/environ").read_bytes())
    environment = dict(line.split("=", 1) for line in block.split("\0") if "=" in line)
    python = shutil.which(command[0], path=environment.get("PATH"))
    arguments = [a for n, a in enumerate(command[1:]) if n or a != "-u"]
    if (
        log is None
        or python is None
        or not _same(python, sys.executable)
        or not arguments
        or (arguments[0].startswith("-") and (arguments[0] != "-m" or len(arguments) < 2))
    ):
        return None
    return Program(tuple(arguments), environment, str(log))


def _same(one: str, other: str) -> bool:
    """Whether they are one interpreter with one set of packages: of the same environment."""
    return os.path.dirname(one) == os.path.dirname(other) and os.path.samefile(one, other)


def _keep(path: Path, number: str) -> None:
    kept = path.with_name(f"{path.stem}.{number}{path.suffix}")
    try:
        path.rename(kept)
    except OSError as error:
        log.warning("%s is not kept: %s", path, error)
    else:
        log.info("the log of the worker before is %s", kept)


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
