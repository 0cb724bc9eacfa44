"""Finds which ranks have the same state, and checks whether they still do.

State that differs once the first communicators exist is kept per rank or, if each rank still has a
replica (HSDP, data parallel with tensor parallel), per replica set (core/job/replica_sets.py).
State may begin to differ later: under LocalSGD, in a part of the model whose gradients are not
reduced, in optimizer state that the first update makes. So the ranks compare again after a few
early updates, and each record has a mark of the replicated state that is checked after a restore:
no rank trains on a replica's state that differs from its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from taskd.core.abbreviate import abbreviate
from taskd.core.job import replica_sets
from taskd.core.job.replica_sets import Holding
from taskd.cython_api import attempt, damage, memory
from taskd.worker.state.gathering import gather
from taskd.worker.state.memory import checksums

if TYPE_CHECKING:
    from taskd.worker.state.training_state import TrainingState

TEXT = 200  # bytes compared of what ranks plan


@dataclass(frozen=True)
class Replicas:
    """The ranks that have the same replicated state as this one. `of`: their lowest; `local`: those
    of them on this node, by local rank; `members`: all of them. None: all ranks of the job."""

    of: int = 0
    local: tuple[int, ...] | None = None
    members: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Difference:
    """How ranks handle a difference in their state: keep the rows at `apart` per rank, and rely on
    `replicas` for the others. `members`: of this rank's replica set."""

    apart: list[int]
    replicas: Replicas
    members: tuple[int, ...] = ()

    def says(self, tensors: int) -> str:
        """In words; `tensors`: how many were compared."""
        if self.members:
            ranks = abbreviate(self.members, ",")
            return f"{tensors} tensors are equal on ranks {ranks}, and differ from other ranks'"
        return f"{len(self.apart)} of {tensors} tensors differ between ranks and are kept per rank"

    def names(self, names: list[str]) -> str:
        """The same with the tensors' names."""
        if self.members:
            return self.says(len(names)).replace(" tensors are", f" tensors, first {names[0]}, are")
        some = ", ".join(names[i] for i in self.apart[:4])
        more = ", …" if len(self.apart) > 4 else ""
        return f"{len(self.apart)} of {len(names)} tensors differ between ranks: {some}{more}"


def compare(
    state: TrainingState, rank: int, node: int, present: Sequence[int]
) -> Difference | None:
    """Compare the replicated state; None: nothing has changed, or a rank has lost its memory and is
    about to be repaired. All ranks get the same result. `node`: the lowest rank of this node;
    `present`: the ranks that are not away. Collectives."""
    if len(present) == 1:
        return None
    rows, names = state.replicated, state.layout()
    sums = checksums(rows)
    content = _signed(memory.checksum(sums.data_ptr(), sums.numel() * 8))
    # asked after the checksums: those of a page that was just lost are of zeros
    lost = damage.spoiled() != 0
    mine = [len(rows), names, content, node, state.replicas.of, bool(state.apart), lost]
    gathered = gather(torch.tensor(mine, dtype=torch.int64), present)
    by_rank = {r: values.tolist() for r, values in gathered.items()}
    theirs = by_rank.values()
    holdings = {
        r: Holding(at, layout, held, of) for r, (_, layout, held, at, of, _, _) in by_rank.items()
    }
    if any(other[-1] for other in theirs) or replica_sets.hold(holdings):
        return None
    differing = list(range(len(rows)))
    if all(other[:2] == mine[:2] for other in theirs):
        different = torch.stack(list(gather(sums, present).values())) != sums
        differing = different.any(dim=0).nonzero().flatten().tolist()
        some = sum(rows[i].numel() for i in differing)
        if 2 * some < sum(row.numel() for row in rows):  # most is replicated everywhere
            return Difference(differing, Replicas())
    apart = any(other[-2] for other in theirs)
    sets = None if apart else replica_sets.find(holdings)
    if sets is None:
        return Difference(differing, Replicas())
    near = replica_sets.same_node(rank, sets, {r: h.node for r, h in holdings.items()})
    members = tuple(r for r, of in sets.items() if of == sets[rank])
    local = tuple(r - node for r in near)
    return Difference([], Replicas(sets[rank], local, members), members)


def _signed(checksum: int) -> int:
    """int64 cannot hold an unsigned 64-bit checksum."""
    return checksum - (1 << 63)


def most(value: int, present: Sequence[int]) -> int:
    """The highest `value` of all ranks. A collective."""
    if len(present) == 1:
        return value
    return max(int(other) for other in gather(torch.tensor([value]), present).values())


def equal(values: Sequence[bytes], present: Sequence[int]) -> list[bool]:
    """Of each of the values, whether all ranks have the same. A collective."""
    if len(present) == 1:
        return [True] * len(values)
    mine = [hashlib.blake2b(value, digest_size=7).digest() for value in values]
    numbers = torch.tensor([int.from_bytes(digest, "little") for digest in mine])
    rows = [row.tolist() for row in gather(numbers, present).values()]
    return [len(set(column)) == 1 for column in zip(*rows, strict=True)]


def who(text: str, present: Sequence[int]) -> str:
    """Which ranks give which text. A collective."""
    data = text.encode()[:TEXT].ljust(TEXT)
    texts: dict[str, list[int]] = {}
    rows = gather(torch.frombuffer(bytearray(data), dtype=torch.uint8), present)
    for rank, row in rows.items():
        texts.setdefault(bytes(row.tolist()).decode(errors="replace").rstrip(), []).append(rank)
    return "; ".join(f"ranks [{abbreviate(ranks)}]: {text}" for text, ranks in texts.items())


class Differs(RuntimeError):
    """The restored state is not the state that the rank had."""


def check(rows: attempt.Rows, recorded: int, step: int) -> None:
    """Raise Differs if the mark of `rows`, just restored, is not `recorded`."""
    if rows.mark(step) != recorded:
        raise Differs(
            f"the state restored for step {step} is not what this rank had: parameters or optimizer"
            " state differ between ranks (gradients that are not all-reduced, LocalSGD), so no"
            " other rank has this rank's"
        )
