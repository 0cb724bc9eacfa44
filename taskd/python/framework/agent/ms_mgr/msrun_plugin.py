"""The class that an msrun looks for if it does not know `taskd.api.taskd_agent_api`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from taskd.api.taskd_agent_api import init_taskd_agent, register_func, start_taskd_agent


class MSRunPlugin:
    """Takes over msrun's workers."""

    def __init__(self) -> None:
        """Raises RuntimeError if TASKD_PROCESS_ENABLE is off: msrun then keeps its workers."""
        if not init_taskd_agent({"Framework": "MindSpore"}):
            raise RuntimeError("taskd does not take msrun's workers over; its log says why")

    def register_callbacks(self, operator: str, func: Callable[..., Any]) -> None:
        """Register one of msrun's functions; see `taskd.api.register_func`. Raises ValueError."""
        if not register_func(operator, func):
            raise ValueError(f"{operator!r} is not registered; taskd's log says why")

    def start(self) -> None:
        """Own the job until it has ended; see `taskd.api.start_taskd_agent`."""
        start_taskd_agent()
