"""Compares how many collectives the ranks of different nodes have begun in the groups that they
share. Those of one node compare them before each update (csrc/counts.c); nodes say theirs with
their heartbeats, of steps far enough apart that all of them say the same ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from taskd.messages.from_rank import RankRaised
from taskd.messages.node_progress import NodeProgress


class Process(Protocol):
    @property
    def incarnation(self) -> int: ...


class Evenness:
    def __init__(self) -> None:
        # group -> (interruption in which it was built, step), collectives begun before it, by whom
        self._last: dict[int, tuple[tuple[int, int], int, int]] = {}

    def heard(self, said: NodeProgress, ranks: Mapping[int, Process]) -> RankRaised | None:
        """A heartbeat. A difference is told of the rank that has begun fewer collectives, which
        would go on with other numbers. `ranks`: those of the job that are not away."""
        for place in range(0, len(said.counts) - 2, 3):
            group, begun, rank = said.counts[place : place + 3]
            last = self._last.get(group)
            if last is None or last[0] < said.counted:
                self._last[group] = said.counted, begun, rank
            elif last[0] == said.counted and last[1] != begun:
                (few, fewer), (many, more) = sorted([(begun, rank), last[1:]])
                if fewer in ranks and more in ranks:
                    text = _text(many - few, more, said.counted[1])
                    incarnation = ranks[fewer].incarnation
                    return RankRaised(fewer, incarnation, said.counted[1], text, refused=True)
        return None


def _text(less: int, than: int, step: int) -> str:
    return (
        f"by step {step} it has begun fewer collectives than rank {than} ({less} less), in a"
        " process group that both are in: its next ones would be taken for these. All ranks of a"
        " group have to begin the same ones in each step (a backward that one rank skips, gradients"
        " accumulated over fewer batches, a branch of the model that one rank takes)."
        " TASKD_UNEVEN=warn trains on"
    )
