"""How many collectives this rank has begun in each of its groups, which the ranks of a node compare
before each update (csrc/counts.c): one that skips a backward, or takes another branch, would have
its next collectives taken for those that it left out.

Backends count what they begin. A group is left out from where its members may differ for other
reasons: it sends from rank to rank (some backends count that too), or another thread of the script
begins collectives in it, as an asynchronous checkpoint does. While ranks are away, others begin
theirs, and nothing is compared.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from taskd.core.abbreviate import abbreviate, named
from taskd.cython_api import slot
from taskd.worker.communication import groups, methods
from taskd.worker.communication.groups import Group, Renewals

POINT_TO_POINT = ("send", "recv", "recv_anysource")
BARRIERS = ("barrier", "monitored_barrier")
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
    """`verifies`: in the first attempt after a repair some ranks compare forwards (verify.py). Made
    by the thread that trains."""

    def __init__(self, renewals: Renewals, verifies: bool = False) -> None:
        self._renewals, self.verifies = renewals, verifies
        self._thread = threading.get_ident()
        self._base: dict[dist.ProcessGroup, int] | None = None
        self._skips = 0  # attempts until the base is taken
        self._numbers: dict[dist.ProcessGroup, int] = {}
        self._apart: set[dist.ProcessGroup] = set()
        self.built()
        for name in POINT_TO_POINT:
            methods.COUNTED.put(dist.ProcessGroup, name, self._between_ranks)
        for name in (*methods.FILLING, *BARRIERS):
            if name not in POINT_TO_POINT:
                methods.COUNTED.put(dist.ProcessGroup, name, self._by_thread)

    def close(self) -> None:
        """Count no more; for tests."""
        methods.COUNTED.remove()

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
        self._base, self._skips = None, int(self.verifies)

    def begin(self, compared: bool) -> tuple[int, list[int]]:
        """An attempt begins. Returns the number of collectives so far, and what `slot.begun` takes.
        `compared`: false while ranks are away."""
        counts, base = self._renewals.counts(), self._base
        total = sum(counts.values())
        if self._skips or not compared:
            self._skips = max(self._skips - 1, 0)
            return total, []
        if base is None:
            self._base = counts
            self._numbers = {handle: _number(handle) for handle in counts}
            return total, []
        given: list[int] = []
        room = slot.GROUPS
        for handle, count in counts.items():
            if handle in self._apart or not room:
                continue
            if handle not in base:
                base[handle], self._numbers[handle] = count, _number(handle)
            given += self._numbers[handle], (count - base[handle]) & 0xFFFFFFFF
            room -= 1
        return total, given

    def leave_out(self, number: int) -> None:
        """Compare this group no longer."""
        self._apart |= {handle for handle, found in self._numbers.items() if found == number}

    def says(self, uneven: slot.Uneven, first: int, step: int) -> str:
        """What is uneven. `first`: the lowest rank of this node; `step`: the last one before."""
        by_count: dict[int, list[int]] = {}
        for local, (before, now) in sorted(uneven.ranks.items()):
            by_count.setdefault(now - (before or 0), []).append(first + local)
        begun = "; ".join(
            f"{named('rank', ranks)} began {count or 'none'}"
            for count, ranks in sorted(by_count.items())
        )
        found = [g for g in groups.present() if self._numbers.get(g.handle) == uneven.group]
        return (
            f"ranks began different numbers of collectives in step {step}, or between it and the"
            f" next one: in {_words(found)} {begun}. Their next ones would be taken for each other:"
            " all ranks of a group have to begin the same ones (a backward that one rank skips,"
            " gradients accumulated over fewer batches, a branch of the model that one rank takes)"
        )


def _number(handle: dist.ProcessGroup) -> int:
    """A group's number, the same on all its ranks."""
    return zlib.crc32(f"{groups.name(handle)} {dist.get_process_group_ranks(handle)}".encode())


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
