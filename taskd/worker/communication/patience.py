"""Extends the time before this rank counts as hung: announced long operations, and compilation."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from taskd.cython_api import slot

log = logging.getLogger("taskd.worker")

COMPILATION = 3600.0  # seconds; a large model's first graph takes minutes


class Patience:
    """Publishes the longest extension in effect. Used by the training thread."""

    def __init__(self) -> None:
        self._asked: list[float] = []
        self._compiling = False

    @contextmanager
    def extended(self, seconds: float, name: str = "") -> Iterator[None]:
        """Extend the limit by `seconds` inside the context; 0 changes nothing. `name`: what it is
        for; a repair that comes meanwhile is named."""
        if seconds <= 0:
            yield
            return
        self._asked.append(seconds)
        before = slot.interruption()
        self._publish()
        try:
            yield
        finally:
            self._asked.remove(seconds)
            self._publish()
            if name and slot.interruption() > before:
                text = "a repair began during the long operation %r, which was no hang"
                log.warning(text + "; if its step is repeated, so is the operation", name)

    def while_compiling(self) -> None:
        """Extend the limit during compilation by torch._dynamo, which optimizers have imported by
        now."""
        module = sys.modules.get("torch._dynamo.callback")
        handler = getattr(module, "callback_handler", None)
        if handler is not None:
            handler.register_start_callback(self._compilation_begins)
            handler.register_end_callback(self._compilation_ends)

    def _compilation_begins(self, *_: object) -> None:
        self._compiling = True
        self._publish()

    def _compilation_ends(self, *_: object) -> None:
        self._compiling = False
        self._publish()

    def _publish(self) -> None:
        if slot.number() is not None:  # a forked child holds no slot
            slot.patience(
                int(max([*self._asked, COMPILATION if self._compiling else 0.0], default=0.0))
            )
