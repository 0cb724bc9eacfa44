"""How many collectives this rank has begun in each of its groups, which the ranks of a node compare
before each update (csrc/counts.c), and those of different nodes with their agents' heartbeats
(core/hang/evenness.py): one that skips a backward, or takes another branch, would have its next
collectives taken for those that it left out.

Backends count what they begin; for which of them that is known, see Renewals.counted. A group is
left out from where on its members may differ for other reasons: it sends from rank to rank (some
backends count that too), or another thread of the script begins collectives in it, as an
asynchronous checkpoint does. While ranks are away, others begin theirs, and nothing is compared.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from taskd import settings
from taskd.core.abbreviate import abbreviate, named
from taskd.core.hang.evenness import REMEDY
from taskd.cython_api import slot
from taskd.worker.communication import groups, methods
from taskd.worker.communication.groups import Group, Renewals

# gloo's monitored_barrier is made of sends and receptions: of N ranks, rank 0 counts 2(N-1)
POINT_TO_POINT = ("send", "recv", "recv_anysource", "monitored_barrier")
PASSES = 1  # as if it were a group: the number of the pass in which a rank is
_own = False  # taskd sends from rank to rank


@contextmanager
def own() -> Iterator[None]:
    """Inside, what is sent from rank to rank is taskd's."""
    global _own
    _own = True
    try:
        yield
    finally:
        _own = False


class Counts:
    """`node`: the ranks of this node. `verifies`: in the first attempt after a repair some ranks
    compare forwards (verify.py). `refuses`: a difference ends the job. Made by the thread that
    trains."""

    def __init__(self, renewals: Renewals, node: range, verifies: bool = False) -> None:
        self._renewals, self._node, self._verifies = renewals, node, verifies
        self._nodes = max(dist.get_world_size() // len(node), 1)
        self.refuses = settings.refuses_uneven(os.environ)
        # every so many steps counts are given to other nodes; 0: the ranks have not agreed yet
        self._every, self._agreed = 0, (-1, time.monotonic())
        self._thread = threading.get_ident()
        self._base: dict[dist.ProcessGroup, int] | None = None
        self._skips = 0  # attempts until the base is taken
        self._numbers: dict[dist.ProcessGroup, int] = {}
        self._apart: set[dist.ProcessGroup] = set()
        self._far: set[dist.ProcessGroup] = set()  # with ranks of other nodes
        self.built()

    def watch(self) -> None:
        """Look at the calls that begin collectives, from now on."""
        for name in POINT_TO_POINT:
            methods.COUNTED.put(dist.ProcessGroup, name, self._between_ranks)
        for name in (*methods.FILLING, "barrier"):
            if name not in POINT_TO_POINT:
                methods.COUNTED.put(dist.ProcessGroup, name, self._by_thread)

    def _between_ranks(self, original: Any) -> Callable[..., Any]:
        def method(handle: Any, *args: Any, **more: Any) -> Any:
            if not _own:
                self._apart.add(handle)
            return original(handle, *args, **more)

        return method

    def _by_thread(self, original: Any) -> Callable[..., Any]:
        def method(handle: Any, *args: Any, **more: Any) -> Any:
            if threading.get_ident() != self._thread and _is_scripts():
                self._apart.add(handle)
            return original(handle, *args, **more)

        return method

    def built(self) -> None:
        """The groups have new backends: counts begin anew, on all ranks in the same attempt."""
        self._base, self._skips = None, int(self._verifies)

    def begin(
        self, step: int, generation: int, compared: bool, of_pass: int
    ) -> tuple[int, list[int]]:
        """The attempt of `step` begins. Returns the number of collectives so far, and what
        `slot.begun` takes. `generation`: of the groups; `compared`: false while ranks are away;
        `of_pass`: its number."""
        counts, base = self._renewals.counts(), self._base
        total = sum(counts.values())
        given = [PASSES, of_pass] if compared else []
        if self._skips or not compared:
            self._skips = max(self._skips - 1, 0)
            return total, given
        if base is None:
            self._base = counts
            self._know(counts)
            return total, given
        if base.keys() != counts.keys():  # some are new, or have been destroyed
            self._base = base = {handle: base.get(handle, counts[handle]) for handle in counts}
            self._know(counts)
        far: list[int] = []
        for handle, count in counts.items():
            if handle in self._apart:
                continue
            given += self._numbers[handle], count - base[handle]
            if handle in self._far:
                far += given[-2:]
        # in the middle between two of the steps after which ranks compare their state
        if far and self._every and step % self._every == self._every // 2 and self.refuses:
            slot.marked(step, generation, far[: 2 * slot.GROUPS])
        return total, given[: 2 * slot.GROUPS]

    def _know(self, handles: Iterable[dist.ProcessGroup]) -> None:
        """Number these groups, the same on all their ranks; forget all others: who holds a group
        that the script has destroyed keeps its threads and connections."""
        known, self._numbers, self._far = self._numbers, {}, set()
        self._apart.intersection_update(handles)
        for handle in handles:
            ranks = dist.get_process_group_ranks(handle)
            self._numbers[handle] = known.get(handle) or number(groups.name(handle), ranks)
            if not self._renewals.counted(handle):
                self._apart.add(handle)
            if any(rank not in self._node for rank in ranks):
                self._far.add(handle)

    def agree(self, step: int, most: Callable[[int], int]) -> None:
        """Agree on how many steps apart counts are given to other nodes: a power of two. `step`:
        the last one; `most`: the highest of all ranks' numbers, a collective."""
        if self._nodes == 1:
            return
        before, since = self._agreed
        self._agreed = step, time.monotonic()
        took = max(self._agreed[1] - since, 1e-6) / max(step - before, 1)
        self._every = 1 << most(min(max(math.ceil(math.log2(apart(self._nodes) / took)), 0), 20))

    def leave_out(self, group: int) -> bool:
        """Compare this group no longer; False if it is not."""
        found = {h for h, n in self._numbers.items() if n == group} - self._apart
        self._apart |= found
        return bool(found)

    def says(self, uneven: slot.Uneven, first: int, step: int) -> str:
        """What is uneven. `first`: the lowest rank of this node; `step`: the last one before."""
        by_count: dict[int, list[int]] = {}
        known = any(before is not None for before, _ in uneven.ranks.values())
        for local, (before, now) in sorted(uneven.ranks.items()):
            if known and before is None:
                continue  # it has begun the next step already
            by_count.setdefault(now - (before or 0), []).append(first + local)
        begun = "; ".join(
            f"{named('rank', ranks)} began {count or 'none'}"
            for count, ranks in sorted(by_count.items())
        )
        found = [g for g in groups.present() if self._numbers.get(g.handle) == uneven.group]
        return (
            f"ranks began different numbers of collectives in step {step}, or between it and the"
            f" next one: in {_words(found)} {begun}. Their next ones would be taken for each other;"
            f" {REMEDY}"
        )


def passes(uneven: slot.Uneven, first: int, step: int) -> str:
    """What to say of ranks in different passes. `first`: the lowest rank of this node; `step`: the
    one that they begin."""
    by_pass: dict[int, list[int]] = {}
    for local, (_, number) in sorted(uneven.ranks.items()):
        by_pass.setdefault(number, []).append(first + local)
    there = "; ".join(f"{named('rank', r)} in pass {n + 1}" for n, r in sorted(by_pass.items()))
    return (
        f"the ranks begin step {step} in different passes of the loop: {there}. Some left a pass"
        " earlier than others (a break, a loader that ran out, or a death behind a break), so"
        " batches and collectives no longer match. Leave the loop on all ranks after the same step,"
        " decided by something all ranks share (all_reduce), and give every rank the same number of"
        " batches"
    )


def number(name: str, ranks: list[int]) -> int:
    """Of a group. A message has room for 62 bits."""
    digest = hashlib.blake2b(f"{name} {ranks}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2


def apart(nodes: int) -> float:
    """Seconds for two heartbeats of an agent in a job of `nodes` (protocol/pings.py): each gives
    its node's counts of the last step that all have chosen."""
    return max(6.0, nodes / 500)


def _words(found: list[Group]) -> str:
    for group in found:
        name = "the default group" if group.default else f"process group {group.name!r}"
        return f"{name} of ranks {abbreviate(group.ranks)}"
    return "a process group"


def _is_scripts() -> bool:
    """Whether this is a thread that the script has started, not one of torch: autograd's run
    backward hooks."""
    known = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return known is not None and not isinstance(known, threading._DummyThread)
