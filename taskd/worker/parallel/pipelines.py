"""Pipelines (torch.distributed.pipelining): what stages and schedules keep of a failed step.

A stage learns the shapes of what it receives in the first step, from its neighbors. A replacement
has not learnt them, so after a failed step all ranks do it again.
"""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

PACKAGE = "torch.distributed.pipelining"
SINGLE = ("_stage_forward_initialized", "_stage_backward_initialized")
MULTI = ("_stages_forward_initialized", "_stages_backward_initialized")


class Pipelines:
    """The schedules of this process."""

    def __init__(self) -> None:
        self._schedules: list[weakref.ref[Any]] = []
        schedules = sys.modules.get(f"{PACKAGE}.schedules")
        if schedules is not None:
            # type(), not isinstance(): the latter wakes proxies, which are asked for their class
            self._schedules = [
                weakref.ref(o)
                for o in gc.get_objects()
                if issubclass(type(o), schedules._PipelineSchedule)
            ]

    def lacking(self) -> list[str]:
        """What this torch lacks for the schedules to be reset."""
        missing = []
        for schedule in self._living():
            names = MULTI if hasattr(schedule, "_stages") else SINGLE
            for name in ("_internal_losses", *names):
                if not hasattr(schedule, name):
                    missing.append(f"{type(schedule).__name__}.{name}")
            if not _stages(schedule):
                missing.append(f"{type(schedule).__name__}._stage")
        return missing

    def reset(self) -> None:
        """Forget what the failed attempt has received and computed."""
        for schedule in self._living():
            schedule._internal_losses.clear()
            for name in MULTI if hasattr(schedule, "_stages") else SINGLE:
                setattr(schedule, name, False)
            for stage in _stages(schedule):
                stage.clear_runtime_states()

    def _living(self) -> list[Any]:
        return [s for s in (ref() for ref in self._schedules) if s is not None]


def _stages(schedule: Any) -> list[Any]:
    if hasattr(schedule, "_stages"):
        return list(schedule._stages)
    stage = getattr(schedule, "_stage", None)
    return [stage] if stage is not None else []
