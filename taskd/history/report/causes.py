"""Extracts from the text of a fault its cause, its device's fault code, and the rank or node it
names.

The texts are written for people, and new ones come with every version. A text that matches no row
is counted under its own first words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

GROWTH = "came back"  # no fault: nodes come back whose ranks were away
# The first row that is found names the cause. \1 is what the first group has found.
CAUSES = (
    (r"its device is (\w+)", r"device: \1"),
    (r"memory fault|memory page", "memory fault"),
    (r"network fault", "network fault"),
    (r"a collective failed", "collective failed"),
    (r"no progress", "hung"),
    (r"silent in [A-Z]+", "silent in a repair"),
    (r"killed by (SIG\w+)", r"killed by \1"),
    (r"(?:exit code|exited with status) \d+ after (\w+)", r"raised \1"),
    (r"exit code|exited with|exited early", "exited"),
    (r"moves?:|has moved", "moved away"),
    (r"cannot come back", "could not come back"),
    (r"comes? back:", GROWTH),
    (r"^node \d+", "node lost"),
    (r"died|killed", "died"),
)
# Effects of one rank's death on the others: never the cause if there is another fault.
CONSEQUENCES = frozenset({"collective failed", "silent in a repair"})
_CAUSES = tuple((re.compile(pattern), name) for pattern, name in CAUSES)
_CODE = re.compile(r"\b(?:0x)?([0-9A-Fa-f]{8})\b")
_WHERE = re.compile(r"(rank|node) (\d{1,9})\b")


@dataclass(frozen=True)
class Fault:
    """`rank` and `node`: the one that the text names, -1 for none. `code`: "" for none."""

    text: str
    cause: str
    code: str = ""
    rank: int = -1
    node: int = -1

    @property
    def growth(self) -> bool:
        return self.cause == GROWTH

    @property
    def consequence(self) -> bool:
        return self.cause in CONSEQUENCES


def fault(text: str) -> Fault:
    where = _WHERE.search(text)
    rank = int(where[2]) if where and where[1] == "rank" else -1
    node = int(where[2]) if where and where[1] == "node" else -1
    for pattern, name in _CAUSES:
        found = pattern.search(text)
        if found is not None:
            code = _CODE.search(text) if name.startswith("device") else None
            return Fault(text, found.expand(name), code[1].upper() if code else "", rank, node)
    return Fault(text, _unknown(text), "", rank, node)


def to_blame(faults: Sequence[Fault]) -> list[Fault]:
    """The causes among the faults: without consequences of others, if there are any others."""
    return [f for f in faults if not f.consequence] or list(faults[:1])


def growth(faults: Sequence[Fault]) -> bool:
    """Whether an incident was no fault: nodes have come back."""
    return bool(faults) and all(fault.growth for fault in faults)


def _unknown(text: str) -> str:
    said = re.sub(r"^(rank|node) \d+:? *", "", text)
    return re.sub(r"\d+", "N", " ".join(said.split()[:4]))[:40] or "unknown"
