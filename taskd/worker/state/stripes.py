"""The node's copy of the replicated state at the start of a step: each of L replicas on the node
writes 1/L of the bytes to shared memory.

Replicas are equal, so their L stripes make one whole copy. They are all ranks of the node, or those
of a replica set (replicas.py), but those that are away. A slot says which part of how many it is,
since ranks leave. Two slots. Before a rank updates its parameters in a step it waits until all
local stripes of that step are complete (`taskd_wait_started`), so the start of a step stays
readable after any rank has changed it. On a device that runs late a thread copies (publisher.py)
while the step is computed.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from taskd.core.job.snapshots import STRIPES, Snapshots
from taskd.cython_api import attempt, damage
from taskd.cython_api import slot as slots
from taskd.records import room
from taskd.records.slots import Slot, SlotFile
from taskd.records.store import stripe_path
from taskd.worker.state.memory import sums
from taskd.worker.state.publisher import Publisher

log = logging.getLogger("taskd.worker")

# bytes; one thread copies less than this before others start
PARALLEL = 4 << 20
# attempts in which what is copied is looked at twice, at their begin and before the update: the
# first of a process, which wait for the copy, and one in so many
EARLY, OFTEN = 4, 64
PARTS = 1 << 16  # more than a node has ranks
NONE = (-1, -1, (0, 1))  # no step is written


class _Look(NamedTuple):
    """At the tensors as an attempt begins. `waited`: for the copy."""

    slot: int
    versions: bytes
    sums: torch.Tensor
    waited: bool


class Stripes:
    """Writes this rank's stripe and reads those of its local replicas. `absent`: the local ranks
    that write none from the next `lay_out` on; they are away. `publisher`: of a device that runs
    late."""

    def __init__(
        self,
        directory: Path,
        local_rank: int,
        local_size: int,
        publisher: Publisher | None = None,
    ) -> None:
        self.publisher = publisher
        self._directory, self._local_rank, self._local_size = directory, local_rank, local_size
        self.absent: frozenset[int] = frozenset()
        self._without = self.absent  # those of the present lay-out
        self._others_left = False  # since the last stripe
        self.refused: float | None = None  # when there was no room for them, and is not yet
        # a replacement continues its predecessor's files: a further fault may need the step before
        self._file = SlotFile(stripe_path(directory, local_rank), STRIPES)
        self._pieces = attempt.Rows(())
        self._targets: list[list[torch.Tensor]] = []
        self.ready = False  # there is room: they are laid out
        self._length = 0
        self._part = (0, 1)  # number of how many
        self._kind, self._by_torch = _kind(*self._part), False
        self._written = [NONE] * STRIPES  # (step, length, part) by slot, of this process
        self._memory: list[torch.Tensor] = []  # of each slot, as far as it is laid out
        self._torn = False  # training changes the state before its updates
        self._opening = threading.Lock()  # of the next two: steps
        self._begun = self._copied = NONE[0]
        self._looks = 0
        self._looked: _Look | None = None
        self._scan()

    def lay_out(
        self, tensors: list[torch.Tensor], local: Sequence[int] | None = None, growth: int = 0
    ) -> None:
        """Set which tensors are copied. `local`: the local ranks that have the same; None: all.
        `growth`: bytes that training will still take, in this process. Raises OSError if the node
        has no room for the stripes of all ranks; then those written before stay, see `outdated`."""
        self._others_left |= self.absent != self._without
        self._without = self.absent
        self.settle()
        before = self._length
        peers = [n for n in self._local(local) if n not in self.absent]
        self._part = peers.index(self._local_rank), len(peers)
        begin, end = _bounds(_total(tensors), *self._part)
        self._length = end - begin
        if self.publisher is not None and self._length != before:
            self.publisher.release()
        self._targets, self._memory, self.ready = [], [], False
        self._reserve(tensors, local, growth)
        self._pieces = attempt.Rows(_cut(tensors, begin, end))
        self._by_torch = not self._pieces.hosted or self._pieces.total > PARALLEL
        self._kind = _kind(*self._part)
        sizes = [piece.numel() for piece in self._pieces.tensors]
        for slot in range(STRIPES):
            row = torch.frombuffer(self._file.buffer(slot), dtype=torch.uint8)
            self._memory.append(row[: sum(sizes)])
            self._targets.append(list(row[: sum(sizes)].split(sizes)))
        self.ready = True

    def _reserve(
        self, tensors: list[torch.Tensor], local: Sequence[int] | None, growth: int
    ) -> None:
        """Have room for both slots: of this node all ranks', or none."""
        node = STRIPES * _total(tensors) * (self._local_size // len(self._local(local)))
        files = self._directory.glob(stripe_path(self._directory, "*").name)
        there = sum(file.stat().st_blocks * 512 for file in files)
        growth *= self._local_size
        found = room.of_node() if node > there else None
        if found is not None and (why := found.lacks(node - there, growth)):
            raise OSError(errno.ENOMEM, why)
        for slot in range(STRIPES):
            present = self._file.read_slot(slot)
            # what is there stays: a slower rank may still need the step before
            least = present.length if present is not None else 0
            self._file.reserve(slot, max(self._length, least, 1))

    def outdated(self, step: int) -> None:
        """Where there is no room for those of `step`: give back the memory of what was written
        before, once no rank can be in such a step."""
        if any(there >= step - 1 for there in self.steps()):
            return
        if self.publisher is not None:
            self.publisher.release()
        self._file.clear()
        self._written = [NONE] * STRIPES
        self._scan()

    def lack(self, tensors: list[torch.Tensor], local: Sequence[int] | None = None) -> str:
        """What they take, and the remedy where there is no room for them."""
        if not self._directory.exists():
            return f"{self._directory} was removed"
        node = STRIPES * _total(tensors) * (self._local_size // len(self._local(local)))
        return (
            f"this node's stripes take {room.mib(node)}, twice parameters and optimizer state: give"
            f" the container {room.MORE}, or set TASKD_STRIPES=off"
        )

    def _local(self, local: Sequence[int] | None) -> Sequence[int]:
        return local or range(self._local_size)

    def write(self, step: int) -> bool:
        """Copy this rank's stripe as the start of `step`. False: the publisher does, and opens the
        gate of `step` for this rank once it has."""
        self.settle()
        file = self._file
        if (step, self._length, self._part) in self._written:
            # a repeated attempt: the state is the same, and overwriting would leave none for a
            # moment
            return True
        if self.publisher is not None and self._length:
            self._publish(self.publisher, step)
            return False
        if step in self._slots.stripes and self._found(step):
            return True
        slot = self._slots.stripe(step)
        self._written[slot] = NONE
        # if a page was lost during the copy, the result is not the start of the step
        if self._by_torch and self._torch_copies():
            file.begin(slot)
            damaged = damage.damaged()
            torch._foreach_copy_(self._targets[slot], self._pieces.tensors)
            if damage.damaged() != damaged:
                return True
            file.commit(slot, step, self._length, 0, _kind(*self._part))
        elif not file.write_rows(slot, step, self._pieces, self._kind):
            return True
        self._note(slot, step)
        return True

    def _publish(self, publisher: Publisher, step: int) -> None:
        left = step in self._slots.stripes  # by the previous process of this rank
        slot = self._slots.stripes.index(step) if left else self._slots.stripe(step)
        self._written[slot] = NONE
        versions, damaged = self._pieces.versions(), damage.damaged()
        self._begun = self._copied = NONE[0]

        def copy() -> None:
            nonlocal left
            left = left and self._found(step)
            if not left:
                self._file.begin(slot)
                self._slots.stripes[slot] = None
                torch._foreach_copy_(self._targets[slot], self._pieces.tensors, non_blocking=True)

        def done(copied: bool) -> None:
            # no update has been queued before the gate: what has, may have torn the copy
            torn = self._pieces.versions() != versions
            if copied and not (left or torn or damage.damaged() != damaged):
                self._file.commit(slot, step, self._length, 0, _kind(*self._part))
                self._note(slot, step)
            if torn:
                self._tears()
            with self._opening:
                self._copied = step
                if self._begun == step:
                    slots.started(step + 1)

        early, self._looked = self._looks < EARLY, None
        if not self._torn and (early or self._looks % OFTEN == 0):
            self._looked = _Look(slot, versions, sums(self._pieces.tensors), early)
        self._looks += 1
        publisher.copy(copy, self._memory, done)
        if self._torn or early:
            publisher.wait()

    def begun(self, step: int) -> None:
        """The attempt of `step`, whose stripe the publisher copies, has begun: the second of the
        two opens the gate."""
        with self._opening:
            self._begun = step
            if self._copied == step:
                slots.started(step + 1)

    def look(self) -> Callable[[], None] | None:
        """Before the first update of some attempts: queue a second look at what has been copied.
        Call the result once the device has come past it; None: there is nothing to do."""
        if self._looked is None:
            return None
        was, self._looked = self._looked, None
        after, moved = sums(self._pieces.tensors), self._pieces.versions() != was.versions

        def compare() -> None:
            # writes through .data count no version
            if not moved and torch.equal(was.sums, after):
                return
            self._tears()
            if not was.waited:
                self.settle()
                self._invalidate(was.slot)

        return compare

    def _tears(self) -> None:
        if not self._torn:
            self._torn = True
            log.info(
                "parameters or optimizer state are changed before the update: from now on each"
                " attempt waits for the copy of them"
            )

    def _note(self, slot: int, step: int) -> None:
        """The stripe of `step` is whole."""
        self._written[slot] = (step, self._length, self._part)
        self._slots.stripes[slot] = step
        if self._others_left:
            self._others_left = False
            self._forget_parts()

    def _forget_parts(self) -> None:
        """All ranks have resumed without some, or with them again: earlier steps, of which others
        wrote parts, are over. Not where replica sets are found to be smaller: a slower rank may
        still need the step before, whose parts are all there."""
        for other in self._file.valid():
            if other.kind % PARTS != self._part[1]:
                self._invalidate(other.index)

    def _invalidate(self, slot: int) -> None:
        self._file.begin(slot)
        self._written[slot] = NONE
        self._slots.stripes[slot] = None

    def _found(self, step: int) -> bool:
        """Whether the previous process of this rank has left the same stripe: no moment may be
        without it, as all replicas may die in it."""
        slot = self._slots.stripes.index(step)
        left = self._file.read_slot(slot)
        if left is None or (left.length, left.kind) != (self._length, _kind(*self._part)):
            return False
        pieces = zip(self._targets[slot], self._pieces.tensors, strict=True)
        if not all(torch.equal(there, here.to(there.device)) for there, here in pieces):
            return False
        self._written[slot] = (step, self._length, self._part)
        return True

    def _scan(self) -> None:
        """Which steps the file has, in which slots."""
        self._slots = Snapshots()
        for slot in self._file.valid():
            self._slots.stripes[slot.index] = slot.step

    def settle(self) -> None:
        if self.publisher is not None:
            self.publisher.wait()

    def _torch_copies(self) -> bool:
        """Whether torch copies: from another device, or with several threads if that pays."""
        return not self._pieces.hosted or torch.get_num_threads() > 1

    @property
    def length(self) -> int:
        """Bytes of this rank's stripe."""
        return self._length

    def steps(self) -> frozenset[int]:
        self.settle()
        return frozenset(s.step for s in self._file.valid())

    def regions(self) -> list[tuple[int, int]]:
        """(address, bytes) of this rank's stripes in this process's memory, by slot; (0, 0) for one
        that has none."""
        return [self._file.region(slot) for slot in range(STRIPES)]

    def has(self, begin: int, end: int) -> bool:
        """Whether some of the addresses [begin, end) are of this rank's stripes."""
        return any(begin < at + size and at < end for at, size in self.regions())

    def rows(self) -> list[torch.Tensor]:
        """The bytes of the stripes."""
        return [row for targets in self._targets for row in targets]

    def forget_after(self, step: int) -> None:
        self.settle()
        for slot in self._file.valid():
            if slot.step > step:
                self._invalidate(slot.index)

    def forget_lost(self, begin: int, end: int) -> None:
        """Invalidate the slots that include the lost bytes [begin, end) of this process's
        memory."""
        if self.publisher is not None:
            self.publisher.release()  # another page is there
        for slot, (at, size) in enumerate(self.regions()):
            if begin < at + size and at < end:
                self._invalidate(slot)

    def read_all(
        self, step: int, tensors: list[torch.Tensor], local: Sequence[int] | None = None
    ) -> None:
        """Read the whole state at the start of `step` into `tensors` from the stripes of `local`,
        as in `lay_out`, whichever of these were away when they wrote them.

        Raises OSError(ESTALE) if a stripe is missing or has another length; then nothing is
        changed.
        """
        found: dict[int, tuple[SlotFile, Slot]] = {}
        for local_rank in self._local(local):
            file = SlotFile(stripe_path(self._directory, local_rank), STRIPES)
            found.update({slot.kind: (file, slot) for slot in file.valid() if slot.step == step})
        counts = {kind % PARTS for kind in found}
        count = next((n for n in counts if all(_kind(i, n) in found for i in range(n))), 0)
        total, parts = _total(tensors), []
        for index in range(count):
            file, slot = found[_kind(index, count)]
            begin, end = _bounds(total, index, count)
            if slot.length == end - begin:
                parts.append((begin, end, file, slot))
        if not count or len(parts) < count:
            has = [(kind // PARTS, kind % PARTS, slot.length) for kind, (_, slot) in found.items()]
            what = f"no stripes of step {step} make {total} bytes, only (part, of, bytes) {has}"
            raise OSError(errno.ESTALE, what, str(self._directory))
        for begin, end, file, slot in parts:
            if end == begin:
                continue
            row = torch.frombuffer(file.buffer(slot.index), dtype=torch.uint8, count=end - begin)
            pieces = _cut(tensors, begin, end)
            torch._foreach_copy_(pieces, list(row.split([p.numel() for p in pieces])))


def _kind(index: int, count: int) -> int:
    """A part as the slot of a `SlotFile` has it."""
    return index * PARTS + count


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
