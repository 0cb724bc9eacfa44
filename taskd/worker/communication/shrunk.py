"""Process groups with members that are away.

A *shrunk group* keeps its size and its ranks; its backend has the present members only, numbered
in the group's order. Reductions need nothing: what is summed are the shares of all members, since
others stand in for those that are away, and who divides does it by the group's size. Everything
that names a rank is translated to the backend's numbers, ReduceOp.AVG divides by the group's size,
and what moves data of one rank to another by its place is refused (shrunk_operators.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch.distributed as dist

# these broadcast from a group's first member on behalf of all of them, see `Shrunk.root`
DDP = (
    "torch.nn.parallel.distributed",
    "taskd.worker.communication.buckets",
    "taskd.worker.communication.static_graph",
)
OR_NOT = ", or leave elastic-training out of the job's recovery strategies"


class NotInShrunkGroup(RuntimeError):
    """A collective that is impossible while members of its group are away."""


@dataclass(frozen=True)
class Shrunk:
    """A group with members that are away. `ranks`: global ones, in the group's order."""

    name: str
    ranks: tuple[int, ...]
    away: frozenset[int]

    @cached_property
    def present(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.ranks if rank not in self.away)

    def refusal(self, what: str, remedy: str = "") -> NotInShrunkGroup:
        gone = [rank for rank in self.ranks if rank in self.away]
        return NotInShrunkGroup(
            f"{what} over process group {self.name!r} of ranks {list(self.ranks)}: only reductions"
            f" (all_reduce, reduce), broadcasts and barriers work while ranks {gone} are away;"
            f" {remedy or 'all_reduce a tensor with a row for each rank'}{OR_NOT}"
        )

    def member(self, number: int, what: str) -> int:
        """The backend's number of the member that is `number` in the group."""
        rank = self.ranks[number]
        if rank in self.away:
            raise self.refusal(
                f"{what} with rank {rank}, which is away,", "name a rank that is present"
            )
        return self.present.index(rank)

    def root(self, number: int, what: str, caller: str) -> int:
        """The same for a root. DDP broadcasts buffers and the order of its buckets from the group's
        first member. If that is away, it has them from the lowest present member: a rank that
        stands in for the lowest one that is away (stand-ins are assigned so), which has the away
        member's buffers in place while it computes the first of its shares."""
        if number == 0 and caller in DDP and self.ranks[0] in self.away:
            return 0
        return self.member(number, what)


_groups: dict[dist.ProcessGroup, Shrunk] = {}


def of(handle: Any) -> Shrunk | None:
    """What is known of a group with members that are away; None for any other."""
    return _groups.get(handle)


def called(group: Any) -> Shrunk | None:
    """The same for what a functional collective gives as its group: the name or, in newer torches,
    the group itself."""
    if isinstance(group, str):
        return next((shrunk for shrunk in _groups.values() if shrunk.name == group), None)
    return of(group if isinstance(group, dist.ProcessGroup) else dist.ProcessGroup.unbox(group))


def away() -> frozenset[int]:
    """The ranks that are away."""
    found: frozenset[int] = frozenset()
    return found.union(*(shrunk.away for shrunk in _groups.values()))


def first(handle: Any) -> int:
    """The global rank of the first present member of a group."""
    shrunk = of(handle)
    return shrunk.present[0] if shrunk is not None else dist.get_global_rank(handle, 0)


def note(handle: dist.ProcessGroup, name: str, ranks: Iterable[int], away: frozenset[int]) -> None:
    """The group has a new backend, with the members that are not among `away`."""
    ranks = tuple(ranks)
    if gone := away.intersection(ranks):
        _groups[handle] = Shrunk(name, ranks, gone)
    else:
        _groups.pop(handle, None)


def forget() -> None:
    _groups.clear()


def refuse_group(name: str) -> None:
    """Raise NotInShrunkGroup if a new group cannot be made: torch would wait for all ranks."""
    if gone := sorted(away()):
        raise NotInShrunkGroup(
            f"process group {name!r} cannot be made while ranks {gone} are away: make all groups"
            f" before taskd.protect(){OR_NOT}"
        )
