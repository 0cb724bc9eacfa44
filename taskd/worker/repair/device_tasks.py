"""Tasks for a rank's device while all ranks are paused: a switch of network cards, stress tests.

Imports no torch: ranks of MindSpore do them too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

from taskd.messages import from_rank, to_rank
from taskd.messages.from_rank import NOT_DONE, WELL
from taskd.messages.to_rank import TESTS
from taskd.messages.values import Results
from taskd.worker.communication.agent_client import AgentClient

log = logging.getLogger("taskd.worker")


class Tested(Protocol):
    """The part of taskd.devices.Device that tasks need."""

    def switch_nics(self, ranks: Sequence[int], backup: Sequence[bool]) -> bool: ...

    def stress_test(self, test: Any) -> int: ...


Task = to_rank.SwitchNics | to_rank.StressTest


def carry_out(agent: AgentClient, device: Tested, order: Task) -> None:
    """Carry out the task and report its results, if it is for this rank. An exception of the device
    is a result too."""
    if results := _results(device, agent.rank, order):
        agent.report(from_rank.TaskDone, order.task, results)


def _results(device: Tested, rank: int, order: Task) -> Results:
    if isinstance(order, to_rank.SwitchNics):
        log.warning("rank %d: network cards of ranks %s: %s", rank, order.ranks, order.backup)
        return ((0, *_result(partial(_switch, device, order))),)
    ops = next((ops for tested, ops in order.tests if tested == rank), ())
    log.warning("rank %d: stress tests %s", rank, ops)
    return tuple((op, *_result(partial(device.stress_test, TESTS[op]))) for op in ops)


def _switch(device: Tested, order: to_rank.SwitchNics) -> int:
    return WELL if device.switch_nics(order.ranks, order.backup) else NOT_DONE


def _result(action: Callable[[], int]) -> tuple[int, str]:
    try:
        code = action()
    except Exception as error:
        log.warning("a task for the device failed", exc_info=True)
        return NOT_DONE, f"{type(error).__name__}: {error}"[:500]
    return (code, "") if code >= 0 else (NOT_DONE, f"the device returned {code}")
