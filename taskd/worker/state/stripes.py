"""The node's copy of the replicated state at the start of a step: each of L replicas on the node
writes 1/L of the bytes to shared memory.

Replicas are equal, so their L stripes make one whole copy. They are all ranks of the node, or those
of a replica set (replicas.py). Two slots. Before a
rank updates its parameters in a step it waits until all local stripes of that step are complete
(`taskd_wait_started`), so the start of a step stays readable after any rank has changed it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import torch

from taskd.core.snapshots import Snapshots
from taskd.cython_api import attempt, damage
from taskd.records.store import SlotFile, stripe_path

# bytes; one thread copies less than this before others start
PARALLEL = 4 << 20


class Stripes:
    """Writes this rank's stripe and reads those of its local replicas. `absent`: the local ranks
    that had none when this process last laid them out; they are away."""

    def __init__(self, directory: Path, local_rank: int, local_size: int) -> None:
        self._directory, self._local_rank, self._local_size = directory, local_rank, local_size
        self.absent: frozenset[int] = frozenset()
        # a replacement continues its predecessor's file: a further fault may need the step before
        path = stripe_path(directory, local_rank)
        self._file: SlotFile | None = SlotFile(path, 2) if path.exists() else None
        self._pieces = attempt.Rows(())
        self._targets: list[list[torch.Tensor]] = []
        self._length = 0
        self._written = [(-1, -1), (-1, -1)]  # (step, length) by slot, of this process
        self._scan()

    def lay_out(self, tensors: list[torch.Tensor], local: Sequence[int] | None = None) -> None:
        """Set which tensors are copied. `local`: the local ranks that have the same; None: all.
        Raises OSError(ENOSPC) if /dev/shm cannot hold the stripe."""
        peers = self._peers(local)
        begin, end = _bounds(_total(tensors), peers.index(self._local_rank), len(peers))
        self._length = end - begin
        file = self._file
        if file is None or file.capacity < self._length:
            kept = self._kept(file)
            grown = SlotFile(
                stripe_path(self._directory, self._local_rank), 2, max(self._length, 1)
            )
            for slot, (step, data) in enumerate(kept):
                at = grown.offset(slot)
                grown.buffer[at : at + len(data)] = data
                grown.commit(slot, step, len(data), 0, 0)
            grown.publish()
            file = self._file = grown
            self._written = [(-1, -1), (-1, -1)]
            self._scan()
        self._pieces = attempt.Rows(_cut(tensors, begin, end))
        self._targets = []
        for slot in range(2):
            row = torch.frombuffer(
                file.buffer, dtype=torch.uint8, offset=file.offset(slot), count=file.capacity
            )
            at, targets = 0, []
            for piece in self._pieces.tensors:
                targets.append(row[at : at + piece.numel()])
                at += piece.numel()
            self._targets.append(targets)

    def lack(self, tensors: list[torch.Tensor], local: Sequence[int] | None = None) -> str:
        """Why there was no room to `lay_out` these, with the room that would do."""
        if not self._directory.exists():
            return f"{self._directory} was removed"
        sets = len(self._peers(None)) // len(self._peers(local))
        node = 2 * _total(tensors) * sets
        found = os.statvfs(self._directory)
        # the former files are kept until the new ones are complete, as others' may be already
        used = (found.f_blocks - found.f_bavail) * found.f_frsize
        place = self._directory.parent
        return (
            f"{place} has {found.f_bavail * found.f_frsize >> 20} MiB free, and this node's stripes"
            f" take {-(-node >> 20)} MiB, twice parameters and optimizer state: {place} needs"
            f" {-(-(used + node) >> 20)} MiB in all (docker: --shm-size; Kubernetes: an emptyDir"
            " with medium: Memory), or set TASKD_STRIPES=off"
        )

    def _peers(self, local: Sequence[int] | None) -> list[int]:
        return [n for n in local or range(self._local_size) if n not in self.absent]

    @property
    def written(self) -> bool:
        """Whether this process has written any."""
        return any(step >= 0 for step, _ in self._written)

    def _kept(self, file: SlotFile | None) -> list[tuple[int, bytes]]:
        """The stripes that a growing file must carry over: a slower rank may still need the step
        before."""
        if file is None:
            return []
        return [
            (s.step, file.buffer[file.offset(s.index) : file.offset(s.index) + s.length])
            for s in file.valid()
        ]

    def write(self, step: int) -> None:
        """Copy this rank's stripe as the start of `step`."""
        file = self._file
        assert file is not None, "lay_out first"
        if (step, self._length) in self._written:
            # a repeated attempt: the state is the same, and overwriting would leave none for a
            # moment
            return
        if self._found(step):
            return
        slot = self._slots.stripe(step)
        self._written[slot] = (-1, -1)
        # if a page was lost during the copy, the result is not the start of the step
        if self._by_torch():
            file.begin(slot)
            damaged = damage.damaged()
            torch._foreach_copy_(self._targets[slot], self._pieces.tensors)
            if damage.damaged() != damaged:
                return
            file.commit(slot, step, self._length, 0, 0)
        elif not file.write_rows(slot, step, self._pieces):
            return
        self._written[slot] = (step, self._length)
        self._slots.striped(step, slot)

    def _found(self, step: int) -> bool:
        """Whether the previous process of this rank has left the same stripe: no moment may be
        without it, as all replicas may die in it."""
        file = self._file
        if file is None or step not in self._slots.stripes:
            return False
        slot = self._slots.stripes.index(step)
        left = file.read_slot(slot)
        if left is None or left.length != self._length:
            return False
        pieces = zip(self._targets[slot], self._pieces.tensors, strict=True)
        if not all(torch.equal(there, here.to(there.device)) for there, here in pieces):
            return False
        self._written[slot] = (step, self._length)
        return True

    def _scan(self) -> None:
        """Which steps the file has, in which slots."""
        self._slots = Snapshots()
        for slot in self._file.valid() if self._file is not None else ():
            self._slots.stripes[slot.index] = slot.step

    def _by_torch(self) -> bool:
        """Whether torch copies: from another device, or with several threads if that pays."""
        pieces = self._pieces
        return not pieces.hosted or (pieces.total > PARALLEL and torch.get_num_threads() > 1)

    @property
    def length(self) -> int:
        """Bytes of this rank's stripe."""
        return self._length

    def steps(self) -> frozenset[int]:
        return frozenset(s.step for s in self._file.valid()) if self._file else frozenset()

    def region(self) -> tuple[int, int]:
        """(address, bytes) of this rank's stripes in this process's memory; (0, 0) before any
        exist."""
        return (self._file.address, len(self._file.buffer)) if self._file is not None else (0, 0)

    def rows(self) -> list[torch.Tensor]:
        """The bytes of the stripes."""
        return [row for targets in self._targets for row in targets]

    def forget_after(self, step: int) -> None:
        if self._file is not None:
            for slot in self._file.valid():
                if slot.step > step:
                    self._file.begin(slot.index)
                    self._written[slot.index] = (-1, -1)
            self._scan()

    def forget_lost(self, begin: int, end: int) -> None:
        """Invalidate the slots that include the lost bytes [begin, end) of this process's
        memory."""
        file = self._file
        if file is None:
            return
        # the file's header was hit: `lay_out` will make a new file
        if begin < file.address + file.offset(0):
            file.path.unlink(missing_ok=True)
            self._file, self._written = None, [(-1, -1), (-1, -1)]
            self._scan()
            return
        for index in range(file.slots):
            at = file.address + file.offset(index)
            if begin < at + file.capacity and at < end:
                file.begin(index)
                self._written[index] = (-1, -1)
        self._scan()

    def read_all(
        self, step: int, tensors: list[torch.Tensor], local: Sequence[int] | None = None
    ) -> None:
        """Read the whole state at the start of `step` into `tensors` from the stripes of `local`,
        as in `lay_out`.

        Raises OSError(ESTALE) if a stripe is missing or has another length; then nothing is
        changed.
        """
        total = _total(tensors)
        parts = []
        peers = self._peers(local)
        for index, local_rank in enumerate(peers):
            begin, end = _bounds(total, index, len(peers))
            path = stripe_path(self._directory, local_rank)
            file = SlotFile(path, 2)
            slot = next((s for s in file.valid() if s.step == step), None)
            if slot is None or slot.length != end - begin:
                raise OSError(
                    errno.ESTALE, f"no stripe of step {step} with {end - begin} bytes", str(path)
                )
            parts.append((begin, end, file, slot))
        for begin, end, file, slot in parts:
            if end == begin:
                continue
            row = torch.frombuffer(
                file.buffer, dtype=torch.uint8, offset=file.offset(slot.index), count=end - begin
            )
            pieces = _cut(tensors, begin, end)
            torch._foreach_copy_(pieces, list(row.split([p.numel() for p in pieces])))


def _total(tensors: list[torch.Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def _bounds(total: int, index: int, count: int) -> tuple[int, int]:
    """[begin, end) of stripe `index`, cut at multiples of 64 bytes."""
    unit = -(-total // (64 * count)) * 64
    return min(index * unit, total), min((index + 1) * unit, total)


def _cut(tensors: list[torch.Tensor], begin: int, end: int) -> list[torch.Tensor]:
    """Views of the bytes [begin, end) of the tensors laid end to end."""
    out, at = [], 0
    for tensor in tensors:
        size = tensor.numel()
        low, high = max(begin - at, 0), min(end - at, size)
        if low < high:
            out.append(tensor[low:high])
        at += size
    return out
