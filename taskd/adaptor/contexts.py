"""torch's bookkeeping of ranks' processes, where the agent starts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed.elastic.multiprocessing as multiprocessing
from torch.distributed.elastic.multiprocessing.api import SubprocessContext

from taskd.agent.processes import Handler, Ordered
from taskd.agent.replacements import runs_python


class Adopted(SubprocessContext):
    """Of processes that torch does not start itself."""

    def _start(self) -> None:
        handlers: dict[int, Any] = {n: Handler(Ordered(), n) for n in range(self.nprocs)}
        self.subprocess_handlers = handlers


class Forked(SubprocessContext):
    """The same where the agent forks them: Python scripts that are not bound to a NUMA node by the
    command that starts them."""

    def _start(self) -> None:
        prepared = "TASKD_AGENT" in self.envs[0]  # else there is no agent to tell
        if (
            prepared
            and runs_python(self.entrypoint, tuple(self.args[0]))
            and getattr(self, "_numa_options", None) is None
        ):
            Adopted._start(self)  # type: ignore[arg-type]
        else:
            super()._start()


@contextmanager
def used(kind: type[SubprocessContext]) -> Iterator[None]:
    """torch makes contexts of that kind."""
    multiprocessing.SubprocessContext = kind  # type: ignore[misc]
    try:
        yield
    finally:
        multiprocessing.SubprocessContext = SubprocessContext  # type: ignore[misc]
