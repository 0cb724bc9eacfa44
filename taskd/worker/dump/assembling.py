"""Finds the whole tensors in the pieces that ranks have, and the name of each in a checkpoint.

A tensor has one name on all ranks that share it, and ranks with equal tensors are replicas. If
ranks use one name for different tensors (pipeline stages number their optimizer state alike,
replicas may differ), the names of that object begin with the rank: `rank-2.optimizer…`. Buffers
differ under DDP by design: one rank's are saved, as torch does. A tensor of which a piece is lost
with its rank's record is left out: torch would load it silently, with garbage in the gap.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from taskd.worker.state import plain
from taskd.worker.state.pieces import Piece, Sizes, count

Path = tuple[str, ...]


@dataclass(frozen=True)
class Member:
    """A rank's pieces, and the memory of its private buffers and of its shards."""

    rank: int
    pieces: list[Piece]
    buffers: bytes | memoryview
    shards: bytes | memoryview
    param_groups: bytes = b""  # see state/small_state.py
    values: bytes = b""  # of its optimizers, besides tensors
    groups: dict[str, list[int]] = field(default_factory=dict)  # see pieces.encode


@dataclass(frozen=True)
class Source:
    """Where a piece's memory is. `content`: equal for pieces with equal memory."""

    rank: int
    piece: Piece
    content: Any


@dataclass
class Whole:
    """One tensor of the checkpoint. `chunks`: offsets -> the piece that begins there."""

    path: Path
    chunks: dict[Sizes, Source]

    @property
    def any(self) -> Piece:
        return next(iter(self.chunks.values())).piece


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
        if member.rank in sets and all(p.buffer or p.private for p in member.pieces):
            whole.setdefault(sets[member.rank], member)
    found = []
    for member in members:
        other = whole.get(sets.get(member.rank, -1))
        if other is not None and other is not member:
            places = {p.key: p.at for p in other.pieces}
            pieces = [
                p if p.buffer else replace(p, private=True, at=places[p.key])
                for p in member.pieces
                if p.buffer or p.key in places
            ]
            member = replace(member, pieces=pieces, shards=other.shards)
        found.append(member)
    return found, {of: member.rank for of, member in whole.items()}


class NotABlock(ValueError):
    """A piece that torch.distributed.checkpoint has no place for."""


def find(members: Iterable[Member], first: int) -> Found:
    """`first`: the rank whose buffers are taken."""
    found = Found()
    owners: dict[str, dict[Path, list[tuple[Member, Piece]]]] = {}
    for member in members:
        for piece in member.pieces:
            if piece.saved:
                paths = owners.setdefault(piece.key[0], {})
                paths.setdefault(piece.path, []).append((member, piece))
    for owner, paths in owners.items():
        _place(owner, [_Named(path, pieces, first) for path, pieces in paths.items()], found)
    return found


def memory(member: Member, piece: Piece) -> torch.Tensor:
    """The private piece, in memory of its own."""
    return plain.tensor_of(piece.dtype, piece.shape, piece.stride, _bytes(member, piece))


def _bytes(member: Member, piece: Piece) -> memoryview:
    own = member.buffers if piece.buffer else member.shards
    return memoryview(own)[piece.at : piece.at + piece.nbytes]


# the tensors that go by this name, by number: the pieces that make up each
Numbered = list[dict[Sizes, Source]]


class _Named:
    """All tensors that go by one name on some rank."""

    def __init__(self, path: Path, pieces: list[tuple[Member, Piece]], first: int) -> None:
        self.path = path
        self.buffer = all(piece.buffer for _, piece in pieces)
        if self.buffer:
            pieces = [next((p for p in pieces if p[0].rank == first), pieces[0])]
        same: dict[Any, int] = {}
        for _, piece in pieces:
            same[piece.ranks, piece.offsets] = same.get((piece.ranks, piece.offsets), 0) + 1
        alone = len(same) == len(pieces) and len({ranks for ranks, _ in same}) == 1
        shared: dict[Any, tuple[set[int], dict[Sizes, Source]]] = {}
        for member, piece in pieces:
            # an ordinary tensor is the rank's own, until it is found to equal others
            group = (piece.ranks or (member.rank,), piece.dtype, piece.size)
            ranks, chunks = shared.setdefault(group, (set(), {}))
            ranks.add(member.rank)
            if piece.offsets is None:
                raise NotABlock(
                    f"{'.'.join(path)}: rank {member.rank} has {piece.says()} that is no block"
                    " of it"
                )
            if count(piece.shape):
                own = alone and piece.private
                content = (member.rank, piece.at) if own else _content(member, piece)
                chunks.setdefault(piece.offsets, Source(member.rank, piece, content))
        self.different: Numbered = []
        self.number: dict[int, int] = {}  # rank -> the one of `different` that it has a piece of
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
    return {(s.piece.dtype, s.piece.size, offsets, s.content) for offsets, s in chunks.items()}


def _whole(size: Sizes, chunks: dict[Sizes, Source]) -> bool:
    return sum(count(s.piece.shape) for s in chunks.values()) == count(size)


def _content(member: Member, piece: Piece) -> Any:
    if not piece.private:
        return piece.at
    data = hashlib.blake2b(_bytes(member, piece), digest_size=16)
    return piece.shape, piece.stride, data.digest()


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
