"""Reports failed ranks to torch, and decides whether another start can help."""

from __future__ import annotations

import os
from typing import Any

from torch.distributed.elastic.multiprocessing.api import SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure, get_error_handler

from taskd.adaptor import set_up
from taskd.adaptor.set_up import Failure
from taskd.agent.supervisor import Supervisor
from taskd.messages import to_agent


class Failures:
    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self._set_up = set_up.SetUp()

    def starting(self) -> None:
        """Note that the ranks are about to be started."""
        self._set_up.starting()

    def protected(self) -> None:
        """Note that the ranks are past their set-up."""
        self._set_up.passed()

    def dead(self, context: Any) -> dict[int, ProcessFailure]:
        """The failures of ranks of torch's `context` whose process is dead, by rank."""
        assert isinstance(context, SubprocessContext)
        failures = {}
        for rank in self._supervisor.dead():
            process = context.subprocess_handlers[rank.local].proc
            code = process.poll()
            failures[rank.number] = ProcessFailure(
                local_rank=rank.local,
                pid=process.pid,
                exitcode=code if code not in (None, 0) else 1,
                error_file=context.error_files[rank.local],
            )
        return failures

    def keep_error_file(self, context: Any) -> None:
        """Put the traceback that torch's @record has written for the first failed rank where the
        launcher is to leave its own (TORCHELASTIC_ERROR_FILE), as torch does."""
        failures = self.dead(context).values() if isinstance(context, SubprocessContext) else ()
        first = min(failures, key=lambda failure: failure.timestamp, default=None)
        if first is not None and os.path.exists(first.error_file):
            get_error_handler().dump_error_file(first.error_file, first.exitcode)

    def in_vain(self, context: Any, order: to_agent.RestartAll) -> str:
        """Why another start of unprotected ranks, as the manager ordered, cannot help; "" if it
        may."""
        if order.fault == "node":
            return ""
        if dead := self.dead(context):
            return self.defect(dead)
        first = self._set_up.stuck(order.reason) if order.fault == "script" else ""
        return f"The job ends: {set_up.LIMIT} starts in a row ended alike: {first}" if first else ""

    def defect(self, failures: dict[int, ProcessFailure]) -> str:
        """Why another start cannot help after these failures of an unprotected one, with the first
        traceback; "" if it may."""
        return self._set_up.in_vain(
            Failure(
                number, f.exitcode, _traceback(f) or self._supervisor.traceback(f.local_rank, f.pid)
            )
            for number, f in failures.items()
        )


def _traceback(failure: ProcessFailure) -> str:
    """The traceback that torch's @record has written to a rank's error file."""
    data: Any = failure.error_file_data
    for key in ("message", "extraInfo", "py_callstack"):
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, str) else ""
