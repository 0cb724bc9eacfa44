"""The position of the script's loop, as kept in records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from taskd.worker.state import places


@dataclass
class Cursor:
    """`pass_number`: how many times steps() or batches() has been gone through; `calls`: the loop
    calls job.call. Of the current pass: `plan`, what it goes over; `pass_random` and `loader`,
    random numbers' states and the loader's place when it began; `index`, batches handed out."""

    pass_number: int = 0
    calls: bool = False
    plan: str = ""
    pass_random: bytes = b""
    loader: bytes = b""
    index: int = 0

    def begin_pass(self, random: bytes, loader: bytes, index: int = 0) -> None:
        self.pass_random, self.loader, self.index = random, loader, index

    def end_pass(self, loader: Iterable[Any] | None) -> None:
        """All its batches are handed out."""
        if loader is not None:
            self.loader = places.at_end(self.loader, loader)
