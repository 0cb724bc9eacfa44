"""What `for attempt in job.steps(n): with attempt as step:` hands out."""

from __future__ import annotations

import enum
from collections.abc import Callable
from types import TracebackType
from typing import Any


class Interrupted(BaseException):
    """An interruption was asked for while this rank was about to change its parameters. Not an
    Exception: user code must not catch it."""


class Ending(enum.Enum):
    COMMITTED = enum.auto()
    REPEATED = enum.auto()  # for a fault: the loop goes on to the repair
    RAISED = enum.auto()  # the script's own affair


class Attempt:
    """One try at one step. A context manager; gives the step, or (step, batch). `committed` tells
    how it ended."""

    __slots__ = ("_ended", "_value", "committed", "step")

    def __init__(
        self, step: int, value: Any, ended: Callable[[BaseException | None], Ending]
    ) -> None:
        """`ended`: called with what the body raised, None where it ended normally."""
        self._value, self._ended, self.step, self.committed = value, ended, step, False

    def __enter__(self) -> Any:
        return self._value

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        ending = self._ended(error)
        self.committed = ending is Ending.COMMITTED
        return error is not None and ending is Ending.REPEATED
