"""Finds the whole tensors in the parts that ranks have, and the name of each in a checkpoint.

A tensor has one name on all ranks that share it, and ranks with equal tensors are replicas. If
ranks use one name for different tensors (pipeline stages number their optimizer state alike,
replicas may differ), the names of that object begin with the rank: `rank-2.optimizer…`. Buffers
differ under DDP by design: one rank's are saved, as torch does. A tensor of which a part is lost
with its rank's record is left out: torch would load it silently, with garbage in the gap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from taskd.worker.state import plain
from taskd.worker.state.parts import Part, Sizes, count

Path = tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """A rank's parts, and the memory of its private buffers and of its shards."""

    rank: int
    parts: list[Part]
    buffers: bytes | memoryview
    shards: bytes | memoryview
    settings: bytes = b""  # see state/small_state.py
    groups: dict[str, list[int]] = field(default_factory=dict)  # see parts.encode


@dataclass(frozen=True)
class Source:
    """Where a part's memory is. `content`: equal for parts with equal memory."""

    rank: int
    part: Part
    content: Any


@dataclass
class Whole:
    """One tensor of the checkpoint. `chunks`: offsets -> the part that begins there."""

    path: Path
    chunks: dict[Sizes, Source]

    @property
    def any(self) -> Part:
        return next(iter(self.chunks.values())).part


@dataclass
class Found:
    """`wholes`: what the checkpoint has. `qualified`: objects whose names begin with a rank, and
    these ranks. `lost`: paths of tensors that are not complete."""

    wholes: list[Whole] = field(default_factory=list)
    qualified: dict[str, list[int]] = field(default_factory=dict)
    lost: list[Path] = field(default_factory=list)


def from_replicas(
    members: list[Member], sets: dict[int, int]
) -> tuple[list[Member], dict[int, int]]:
    """Give each member the state that only the record of one of its replicas has. `sets`: rank ->
    replica set, for members that have one. Also returns the rank whose record has the state of each
    set."""
    whole: dict[int, Member] = {}
    for member in members:
        if member.rank in sets and all(p.buffer or p.private for p in member.parts):
            whole.setdefault(sets[member.rank], member)
    found = []
    for member in members:
        other = whole.get(sets.get(member.rank, -1))
        if other is not None and other is not member:
            places = {p.key: p.at for p in other.parts}
            parts = [
                p if p.buffer else replace(p, private=True, at=places[p.key])
                for p in member.parts
                if p.buffer or p.key in places
            ]
            member = replace(member, parts=parts, shards=other.shards)
        found.append(member)
    return found, {of: member.rank for of, member in whole.items()}


class NotABlock(ValueError):
    """A part that torch.distributed.checkpoint has no place for."""


def find(members: Iterable[Member], first: int) -> Found:
    """`first`: the rank whose buffers are taken."""
    found = Found()
    owners: dict[str, dict[Path, list[tuple[Member, Part]]]] = {}
    for member in members:
        for part in member.parts:
            if part.saved:
                paths = owners.setdefault(part.key[0], {})
                paths.setdefault(part.path, []).append((member, part))
    for owner, paths in owners.items():
        _place(owner, [_Named(path, parts, first) for path, parts in paths.items()], found)
    return found


def memory(member: Member, part: Part) -> torch.Tensor:
    """The private part, in memory of its own."""
    return plain.tensor_of(part.dtype, part.shape, part.stride, _bytes(member, part))


def _bytes(member: Member, part: Part) -> memoryview:
    own = member.buffers if part.buffer else member.shards
    return memoryview(own)[part.at : part.at + part.nbytes]


# the tensors that go by this name, by number: the parts that make up each
Numbered = list[dict[Sizes, Source]]


class _Named:
    """All tensors that go by one name on some rank."""

    def __init__(self, path: Path, parts: list[tuple[Member, Part]], first: int) -> None:
        self.path = path
        self.buffer = all(part.buffer for _, part in parts)
        if self.buffer:
            parts = [next((p for p in parts if p[0].rank == first), parts[0])]
        same: dict[Any, int] = {}
        for _, part in parts:
            same[part.ranks, part.offsets] = same.get((part.ranks, part.offsets), 0) + 1
        alone = len(same) == len(parts) and len({ranks for ranks, _ in same}) == 1
        shared: dict[Any, tuple[set[int], dict[Sizes, Source]]] = {}
        for member, part in parts:
            # an ordinary tensor is the rank's own, until it is found to equal others
            group = (part.ranks or (member.rank,), part.dtype, part.size)
            ranks, chunks = shared.setdefault(group, (set(), {}))
            ranks.add(member.rank)
            if part.offsets is None:
                raise NotABlock(
                    f"{'.'.join(path)}: rank {member.rank} has {part.says()} that is no block of it"
                )
            if count(part.shape):
                own = alone and part.private
                content = (member.rank, part.at) if own else _content(member, part)
                chunks.setdefault(part.offsets, Source(member.rank, part, content))
        self.different: Numbered = []
        self.number: dict[int, int] = {}  # rank -> the one of `different` that it has a part of
        self.complete: list[bool] = []
        # the complete ones first: remains of another may belong to a replica
        for (_, _, size), (ranks, chunks) in sorted(
            shared.items(), key=lambda item: (not _whole(item[0][2], item[1][1]), min(item[1][0]))
        ):
            self.number.update(dict.fromkeys(ranks, self._number(size, chunks)))

    def _number(self, size: Sizes, chunks: dict[Sizes, Source]) -> int:
        described = _described(chunks)
        for number, other in enumerate(self.different):
            if described <= _described(other) and (chunks or not count(size)):
                return number
        self.different.append(chunks)
        self.complete.append(_whole(size, chunks))
        return len(self.different) - 1


def _described(chunks: dict[Sizes, Source]) -> set[Any]:
    return {(s.part.dtype, s.part.size, offsets, s.content) for offsets, s in chunks.items()}


def _whole(size: Sizes, chunks: dict[Sizes, Source]) -> bool:
    return sum(count(s.part.shape) for s in chunks.values()) == count(size)


def _content(member: Member, part: Part) -> Any:
    if not part.private:
        return part.at
    data = hashlib.blake2b(_bytes(member, part), digest_size=16)
    return part.shape, part.stride, data.digest()


def _place(owner: str, named: list[_Named], found: Found) -> None:
    """Name the tensors of an object."""
    ambiguous = any(len(name.different) > 1 for name in named if not name.buffer)
    prefixes: list[tuple[Path, int | None]] = [((), None)]
    if ambiguous:
        # ranks that agree on every name
        alike: dict[Any, int] = {}
        ranks = sorted({rank for name in named for rank in name.number})
        for rank in ranks:
            meant = tuple(name.number.get(rank) for name in named if not name.buffer)
            alike.setdefault(meant, rank)
        found.qualified[owner] = sorted(alike.values())
        prefixes = [((f"rank-{rank}",), rank) for rank in found.qualified[owner]]
    for prefix, of in prefixes:
        for name in named:
            if of is not None and not name.buffer and of not in name.number:
                continue
            which = 0 if of is None or name.buffer else name.number[of]
            path = (*prefix, *name.path)
            chunks = name.different[which]
            if not name.complete[which]:
                found.lost.append(path)
            elif chunks:  # else a tensor without elements
                found.wholes.append(Whole(path, chunks))
