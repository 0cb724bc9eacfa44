"""The position of the script's loop, as kept in records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from taskd.worker.discovery.between import Values
from taskd.worker.state import places, plain


@dataclass(frozen=True)
class Epoch:
    """Where a loop over job.epochs is. `loop`: how many have begun, 0: none; `index`: of the epoch,
    or OVER; `first`: number of the first pass in it. As it began: `values`, of variables, see
    between.py; `random`, states of random numbers; `small`, parts that are values; `begun`: of
    variables as its last pass began. `left`: what variables held where the script went on from a
    loop to another one: by number of its last pass, -n for the loop n of these."""

    loop: int = 0
    index: int = 0
    first: int = 0
    values: Values = field(default_factory=dict)
    random: bytes = b""
    small: dict[str, bytes] = field(default_factory=dict)
    begun: Values = field(default_factory=dict)
    left: dict[int, Values] = field(default_factory=dict)

    def encode(self) -> bytes:
        return plain.encode(tuple(vars(self).values()))

    @classmethod
    def decode(cls, data: bytes) -> Epoch:
        return cls(*plain.decode(data)) if data else cls()


@dataclass
class Cursor:
    """`pass_number`: how many times steps() or batches() has been gone through; `calls`: the loop
    calls job.call. Of the current pass: `plan`, what it goes over; `pass_random` and `loader`,
    random numbers' states and the loader's place when it began; `index`, batches handed out.
    `epoch`: an encoded Epoch; `item`: of it, as plans have it. `ends`: what a pass leaves in
    variables for the code behind it, see between.py; `left`: the script has left it, as by
    break."""

    pass_number: int = 0
    calls: bool = False
    plan: str = ""
    pass_random: bytes = b""
    loader: bytes = b""
    index: int = 0
    epoch: bytes = b""
    item: str = ""
    ends: bytes = b""
    left: bool = False

    def begin_pass(self, random: bytes, loader: bytes, index: int = 0) -> None:
        self.pass_random, self.loader, self.index = random, loader, index
        self.left = False

    def end_pass(self, loader: Iterable[Any] | None) -> None:
        """All its batches are handed out."""
        if loader is not None:
            self.loader = places.at_end(self.loader, loader)
