"""Compares how many collectives the ranks of different nodes have begun in the groups that they
share. Those of one node compare them before each update (csrc/counts.c); nodes say theirs with
their heartbeats, of steps far enough apart that all of them say the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from taskd.messages.from_rank import RankRaised
from taskd.messages.node_progress import NodeProgress

REMEDY = (
    "all ranks of a group have to begin the same ones in each step (a backward that one rank skips,"
    " gradients accumulated over fewer batches, a branch of the model that one rank takes)."
    " TASKD_UNEVEN=warn trains on"
)
KEPT = 2  # steps: nodes say the newest one, and their heartbeats do not come at once


class Process(Protocol):
    @property
    def incarnation(self) -> int: ...


class Evenness:
    def __init__(self) -> None:
        # generation and step -> group -> collectives begun before it, by whom
        self._steps: dict[tuple[int, int], dict[int, tuple[int, int]]] = {}
        self._said: dict[int, tuple[int, int]] = {}  # by each node, last

    def heard(
        self, node: int, said: NodeProgress, ranks: Mapping[int, Process]
    ) -> RankRaised | None:
        """A heartbeat. A difference is reported of the rank that has begun fewer collectives, which
        would go on with other numbers. `ranks`: those of the job that are not away."""
        at = said.counted
        if not said.counts or self._said.get(node) == at:
            return None
        self._said[node] = at
        known = self._steps.setdefault(at, {})
        if len(self._steps) > KEPT:
            del self._steps[min(self._steps)]
        for place in range(0, len(said.counts) - 2, 3):
            group, begun, rank = said.counts[place : place + 3]
            other = known.setdefault(group, (begun, rank))
            if other[0] != begun:
                (few, fewer), (many, more) = sorted([(begun, rank), other])
                if fewer in ranks and more in ranks:
                    text = _text(many - few, more, at[1])
                    incarnation = ranks[fewer].incarnation
                    return RankRaised(fewer, incarnation, at[1], text, refused=True)
        return None


def _text(fewer: int, than: int, step: int) -> str:
    return (
        f"by step {step} it has begun fewer collectives than rank {than} ({fewer} fewer), in a"
        f" process group that both are in: its next ones would be taken for these; {REMEDY}"
    )
