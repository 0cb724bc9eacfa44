"""Starts ranks' processes, first ones and replacements: by the zygote in ~10 ms, else by a fresh
interpreter in ~2 s.

Owned by the agent's thread, which it notifies by two callbacks: a process has started, a forked
process has ended. A zygote that has been killed, is stopped, or does not answer is replaced; until
the new one is ready, fresh interpreters are used.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from taskd import logs, stacks, start
from taskd.agent.ranks import process_limits
from taskd.agent.ranks.processes import Forked, Zygote, leaving, orphan_code

log = logging.getLogger("taskd.agent")

ANSWER = 2.0  # seconds for a fork; it takes ~10 ms, and a fresh interpreter ~2 s
# seconds from the start of the first zygote until it is ready: ~3 s, twice that while ranks start,
# and 20 where a pod has just come to a busy machine: a fresh interpreter would begin anew then
WARM = 30.0
# the same, for the first processes: without the zygote they would do the same work themselves
FIRST = 60.0
# seconds until another zygote is started: the fresh interpreters that stand in need the CPUs first,
# for ~2 s
AGAIN = 5.0
# seconds for which a process that the kernel refuses to start is tried again: a killed one may free
# its place as late (see children.py)
REFUSED = 5.0
# seconds between two tries: nothing notifies of a place that has become free; a try takes 1 ms
NEXT = 0.1
# as TaskD says it to a rank that is started again in its pod: MindSpeed-LLM does not wait for its
# node's other ranks then
IN_PLACE = {"RESTART_FAULT_PROCESS_TYPE": "worker"}


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
    # starts it where the zygote does not; None: a fresh interpreter does
    instead: Callable[[], None] | None = None

    @property
    def python(self) -> bool:
        """Whether it is a script or -m module; torchrun puts -u in front of these."""
        return self.arguments[:1] == ("-u",)

    @property
    def forkable(self) -> bool:
        return self.instead is not None or runs_python(self.entrypoint, self.arguments)


def runs_python(entrypoint: Any, arguments: tuple[Any, ...]) -> bool:
    """Whether it is a Python program for this interpreter, which can be forked."""
    return entrypoint == sys.executable and arguments[:1] == ("-u",)


class Replacements:
    """`started(order, process)`, `failed(order, why)` and `ended(process, status)` are called from
    `start`, `hear` and `poll`."""

    def __init__(
        self,
        started: Callable[[Order, Any], None],
        ended: Callable[[Forked, int], None],
        failed: Callable[[Order, str], None],
    ) -> None:
        self._started, self._ended, self._failed = started, ended, failed
        # (rank, incarnation) -> the order, when to try it again (None: it is tried), and until when
        self._refused: dict[tuple[int, int], tuple[Order, float | None, float]] = {}
        # by ticket; with the time until which it must be answered
        self._asked: dict[int, tuple[Order, float]] = {}
        # requests for which its socket has no room yet
        self._unsent: deque[dict[str, Any]] = deque()
        self._tickets = 0
        self._forked: dict[int, Forked] = {}  # by the present zygote
        self.zygote: Zygote | None = None
        self._environment: dict[str, str] | None = None
        self._ranks = ""
        self._began = 0.0  # when the last zygote was started
        self._zygotes = 0
        self._again: float | None = None  # when to start the next one
        self._stopped = False  # the zygote was, at the last look
        self._closed = False

    def warm_up(self, environment: dict[str, str], ranks: str) -> None:
        """Start the zygote, once. `ranks`: the module with what they import, see zygote.py."""
        if self._environment is None:
            self._ranks = ranks
            self._environment = {k: v for k, v in environment.items() if k != "TASKD_SLOT"}
            self._begin(time.monotonic())

    def _begin(self, now: float) -> None:
        assert self._environment is not None
        self._began, self._again, self._stopped = now, None, False
        try:
            self.zygote = Zygote(self._environment, self._ranks)
        except OSError as error:
            log.warning("the zygote %s", process_limits.why(error))
            self._again = now + AGAIN
        self._zygotes += 1

    def start(self, order: Order) -> None:
        """Start the process; `started` is called now or, through the zygote, soon."""
        self._tickets += 1
        request = {
            "ticket": self._tickets,
            "env": order.environment,
            "command": list(order.arguments),
            "stdout": order.stdout,
            "stderr": order.stderr,
            "first": order.incarnation == 0,
        }
        now, zygote = time.monotonic(), self.zygote
        # wait for the first zygote: fresh interpreters would only delay it. Later, waiting costs
        # more
        able = zygote is not None and (zygote.ready or self._zygotes == 1)
        if order.forkable and able and zygote is not None:
            warm = self._began + (WARM if order.incarnation else FIRST)
            self._asked[self._tickets] = (
                order,
                max(now + ANSWER * (1 + len(self._asked)), 0.0 if zygote.ready else warm),
            )
            self._unsent.append(request)
            self._send(zygote)
        else:
            self._start_slowly(order)

    def _send(self, zygote: Zygote) -> None:
        """Send pending requests. A zygote that cannot accept them is detected by the end of its
        socket, or by its deadline."""
        while self._unsent and zygote.request(self._unsent[0]):
            self._unsent.popleft()

    def _start_slowly(self, order: Order) -> None:
        """Start a process without a zygote: a fresh interpreter, or the user's own program, in
        which `import taskd` detects that it is a replacement."""
        if self._closed:
            return
        if order.instead is not None:
            order.instead()
            return
        command = [order.entrypoint, *order.arguments]
        if order.python and order.incarnation:
            command = start.command(
                "taskd.worker.process.replacement",
                *order.arguments,
                python=order.entrypoint,
                unbuffered=True,
            )
        try:
            with contextlib.ExitStack() as stack:
                streams = [
                    stack.enter_context(open(logs.open_to_append(p), "ab")) if p else None
                    for p in (order.stdout, order.stderr)
                ]
                process = subprocess.Popen(
                    command,
                    env=order.environment,
                    stdout=streams[0],
                    stderr=streams[1],
                    start_new_session=True,
                )
        except OSError as error:
            self._refuse(order, error.errno or 0, process_limits.why(error))
            return
        self._runs(order, process)

    def _runs(self, order: Order, process: Any) -> None:
        self._refused.pop((order.rank, order.incarnation), None)
        self._started(order, process)

    def _refuse(self, order: Order, number: int, why: str) -> None:
        """The kernel has refused to start the process: try again for a while, if that may help."""
        now, key = time.monotonic(), (order.rank, order.incarnation)
        _, _, until = self._refused.pop(key, (order, None, now + REFUSED))
        if number not in process_limits.PASSING or now >= until:
            self._failed(order, why)
            return
        if until == now + REFUSED:
            log.warning("rank %d %s; tried again for %g s", order.rank, why, REFUSED)
        self._refused[key] = order, now + NEXT, until

    def hear(self) -> None:
        """Read the zygote's messages, or handle its end."""
        zygote = self.zygote
        if zygote is None:
            return
        try:
            while (message := zygote.receive()) is not None:
                if "started" in message:
                    process = self._forked[message["started"]] = Forked(message["started"])
                    self._runs(self._asked.pop(message["ticket"])[0], process)
                elif "refused" in message:
                    order, _ = self._asked.pop(message["ticket"])
                    self._refuse(order, message["refused"], message["why"])
                elif "ended" in message:
                    self._over(message["ended"], message["status"])
                elif "ready" in message:
                    zygote.ready = True
                    log.info("zygote is ready")
                self._send(zygote)
        except EOFError:
            self._lost(zygote)

    def _lost(self, zygote: Zygote) -> None:
        """The zygote has ended. Its children go on; pending orders are started by fresh
        interpreters."""
        code = zygote.end()
        self.zygote = None
        for pid in [p for p in self._forked if leaving(p)]:
            self._over(pid, orphan_code(pid))
        for process in self._forked.values():
            process.adopt()
        self._forked.clear()
        self._unsent.clear()
        # one that exited by itself would do so again: this job gets no other
        by_itself = code is None or code >= 0
        log.warning(
            "the zygote has ended (%s); replacements are started by fresh interpreters%s",
            f"exit code {code}" if code is not None else "cause unknown",
            "" if by_itself else " until another one is ready",
        )
        if not by_itself:
            self._again = time.monotonic() + AGAIN
        asked, self._asked = self._asked, {}
        for order, _ in asked.values():
            self._start_slowly(order)

    # -- time --------------------------------------------------------------------------------------

    def poll(self, now: float) -> float | None:
        """Kill a zygote that does not answer, start the next; returns when to look again."""
        if self._again is not None and now >= self._again and self.zygote is None:
            self._begin(now)
        late = [order for order, due in self._asked.values() if now >= due]
        if late and self.zygote is not None:
            self._give_up(f"it has not started rank {late[0].rank} within {ANSWER:g} s")
        for key, (order, due, until) in list(self._refused.items()):
            if due is not None and now >= due:
                self._refused[key] = order, None, until
                self.start(order)
        waiting = [due for _, due, _ in self._refused.values() if due is not None]
        return min((*waiting, *(due for _, due in self._asked.values())), default=self._again)

    def beat(self) -> None:
        """Kill a zygote that is found stopped twice; called every few seconds."""
        zygote = self.zygote
        stopped = zygote is not None and stacks.state(zygote.pid) in stacks.STOPPED
        if stopped and self._stopped:
            self._give_up("it is stopped by a signal")
        self._stopped = stopped

    def _give_up(self, why: str) -> None:
        zygote = self.zygote
        assert zygote is not None
        log.warning("the zygote (pid %d) is killed: %s", zygote.pid, why)
        zygote.kill()  # before anything else is started: from here on it forks nothing
        self.hear()  # what it has forked before that, and then its end

    def reports_end_of(self, process: Forked) -> bool:
        """Whether the zygote that forked it is alive, and will report how it ended."""
        return self._forked.get(process.pid) is process

    def _over(self, pid: int, status: int) -> None:
        process = self._forked.pop(pid, None)
        if process is not None:
            process.end(status)
            self._ended(process, status)

    def close(self) -> None:
        """Kill the zygote, and what it was about to start."""
        self._again, self._closed = None, True
        self._refused.clear()
        zygote, self.zygote = self.zygote, None
        if zygote is None:
            return
        zygote.kill()
        with contextlib.suppress(EOFError):
            while (message := zygote.receive()) is not None:
                if "started" in message:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(message["started"], signal.SIGKILL)
        zygote.socket.close()
