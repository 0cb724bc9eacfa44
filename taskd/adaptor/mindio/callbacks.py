"""The four callbacks by which a program beside the training follows repairs and decides about them,
as MindCluster does.

taskd's manager decides; the callbacks are called in the documented order. The last strategy offered
is the one being carried out: choosing it changes nothing. Choosing `dump` or `exit` instead ends
the job that way.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from taskd.adaptor.mindio.handlers import fitting

log = logging.getLogger("taskd.worker")

FAULT_RANKS, STOP_COMPLETE = "report_fault_ranks", "report_stop_complete"
STRATEGIES, RESULT = "report_strategies", "report_result"
ACTIONS = (FAULT_RANKS, STOP_COMPLETE, STRATEGIES, RESULT)
ENDED = 1  # the type of a fault that has cost the process
OFFERED = ("exit", "dump", "recover", "retry")  # the last resort first
SUCCESS, FAILURE = 0, 1  # what tft_notify_controller_… return

# registered before there is a processor, in the process that would host the controller
registered: dict[str, Callable[..., Any]] = {}


def register(action: str, function: Callable[..., Any]) -> int:
    if action not in ACTIONS or not callable(function):
        log.error(
            "tft_register_mindx_callback(%r, %r): the action is one of %s, with a function",
            action,
            function,
            ", ".join(ACTIONS),
        )
        return FAILURE
    registered[action] = function
    return SUCCESS


class Callbacks:
    """`request` ends the job by dump or exit."""

    def __init__(self, request: Callable[[str], None]) -> None:
        self._request = request
        self._faulty: dict[int, int] = {}
        self._strategy = ""
        self._calls: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def offered(self) -> list[str]:
        """The strategies that fit the fault; the one being carried out comes last."""
        unfit = {self._strategy, *(["retry"] if ENDED in self._faulty.values() else [])}
        return [*(s for s in OFFERED if s not in unfit), self._strategy]

    @property
    def under_way(self) -> bool:
        """Whether a repair is under way."""
        return bool(self._strategy)

    # -- told by the thread that carries out orders ------------------------------------------------

    def interrupted(self, faulty: tuple[tuple[int, int], ...], strategy: str) -> None:
        self._faulty, self._strategy = dict(faulty), strategy
        codes: Mapping[int, str] = dict.fromkeys(self._faulty, "")
        self._call(FAULT_RANKS, dict(self._faulty), dict(codes))

    def stopped(self) -> None:
        self._call(STOP_COMPLETE, 0, "stop ok", dict(self._faulty))
        self._call(STRATEGIES, dict(self._faulty), self.offered)

    def resumed(self) -> None:
        strategy, self._strategy = self._strategy, ""
        self._call(RESULT, 0, "Mindio do repair operation ok", dict(self._faulty), strategy)

    def _call(self, action: str, *arguments: Any) -> None:
        if not all(a in registered for a in ACTIONS):
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="taskd-callbacks", daemon=True)
            self._thread.start()
        self._calls.put((action, arguments))

    def _run(self) -> None:
        """Call one after the other: a slow callback must not hold up a repair."""
        while True:
            action, arguments = self._calls.get()
            try:
                fitting(registered[action], arguments)
            except Exception:
                log.exception("the callback %s failed", action)

    # -- what the program answers ------------------------------------------------------------------

    def choose(self, strategy: str) -> int:
        """The program has chosen a strategy."""
        if strategy == self._strategy and strategy:
            return SUCCESS
        if strategy in ("dump", "exit"):
            self._request(strategy)
            return SUCCESS
        log.error(
            "strategy %r: taskd carries out %r; dump and exit may be chosen instead",
            strategy,
            self._strategy or "none",
        )
        return FAILURE
