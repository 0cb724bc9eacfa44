"""Starting the process that takes a rank over: by the zygote in ~10 ms, else by a fresh interpreter in ~2 s.

Owned by the supervisor's thread, which is told through two calls: a process has started, a forked process has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd.agent.processes import Forked, Zygote, leaving

log = logging.getLogger("taskd.agent")


@dataclass(frozen=True)
class Order:
    """Start `rank`'s process number `incarnation` as torch's launcher started the first."""

    rank: int
    incarnation: int
    entrypoint: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    stdout: str | None
    stderr: str | None

    @property
    def python(self) -> bool:
        """Whether it is a script or -m module; torchrun puts -u in front of these."""
        return self.arguments[:1] == ("-u",)


class Replacements:
    """`started(order, process)` and `ended(process, status)` are called from `start` and `hear`."""

    def __init__(self, started: Callable[[Order, Any], None], ended: Callable[[Forked, int], None]) -> None:
        self._started, self._ended = started, ended
        self._asked: dict[int, Order] = {}  # by ticket
        self._tickets = 0
        self._forked: dict[int, Forked] = {}
        self.zygote: Zygote | None = None

    def warm_up(self, environment: dict[str, str]) -> None:
        """Start the zygote, once."""
        if self.zygote is None:
            self.zygote = Zygote({k: v for k, v in environment.items() if k != "TASKD_SLOT"})

    def start(self, order: Order) -> None:
        """Start the process; `started` is called now or, through the zygote, soon."""
        self._tickets += 1
        request = {
            "ticket": self._tickets,
            "env": order.environment,
            "command": list(order.arguments),
            "cwd": os.getcwd(),
            "stdout": order.stdout,
            "stderr": order.stderr,
        }
        if order.python and self.zygote is not None and self.zygote.request(request):
            self._asked[self._tickets] = order
        else:
            self._start_slowly(order)

    def _start_slowly(self, order: Order) -> None:
        """Without a zygote: a fresh interpreter, or the user's own program, in which `import taskd` sees that it is a replacement."""
        command = [order.entrypoint, *order.arguments]
        if order.python:
            command[1:2] = ["-u", "-m", "taskd.worker.replacement"]
        with contextlib.ExitStack() as stack:
            streams = [stack.enter_context(open(p, "ab")) if p else None for p in (order.stdout, order.stderr)]
            process = subprocess.Popen(command, env=order.environment, stdout=streams[0], stderr=streams[1], start_new_session=True)
        self._started(order, process)

    def hear(self) -> None:
        """The zygote has said something, or is gone."""
        zygote = self.zygote
        if zygote is None:
            return
        try:
            while (message := zygote.receive()) is not None:
                if "started" in message:
                    process = self._forked[message["started"]] = Forked(message["started"])
                    self._started(self._asked.pop(message["ticket"]), process)
                elif "ended" in message:
                    self._over(message["ended"], message["status"])
                elif "ready" in message:
                    log.info("zygote is ready")
        except EOFError:
            log.warning("the zygote has ended; replacements are started the slow way")
            self.zygote = None
            zygote.close()
            for pid in [p for p in self._forked if leaving(p)]:
                self._over(pid, -signal.SIGKILL)
            asked, self._asked = self._asked, {}
            for order in asked.values():
                self._start_slowly(order)

    def _over(self, pid: int, status: int) -> None:
        process = self._forked.pop(pid, None)
        if process is not None:
            process.end(status)
            self._ended(process, status)

    def close(self) -> None:
        if self.zygote is not None:
            self.zygote.close()
