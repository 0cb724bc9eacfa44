"""The interface of sources that a manager follows besides its agents and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from taskd.core import events as e

Feed = Callable[[e.Event, float], None]


class Source(Protocol):
    @property
    def descriptor(self) -> int:
        """Readable when there may be something new; -1: never."""

    def poll(self, feed: Feed, now: float) -> None:
        """Pass news to `core`."""

    def close(self) -> None: ...
