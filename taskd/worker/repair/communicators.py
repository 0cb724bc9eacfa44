"""The job's communicators, generation by generation.

Every process group stays the object that it is; a generation puts new backends into all of them,
connected over a store that an agent hosts. They are made between `sockets.begin` and `sockets.end`,
so their connections are known and an interruption can cut them.
"""

from __future__ import annotations

import concurrent.futures
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from taskd.cython_api import sockets
from taskd.worker.communication import fake_groups, groups, leftovers, shrunk_operators
from taskd.worker.communication.counts import Counts
from taskd.worker.communication.groups import Group
from taskd.worker.set_up import functions as set_up
from taskd.worker.set_up.interception import suspended
from taskd.worker.state.gathering import gather

AT_ONCE = 16  # groups that connect concurrently: each waits for other ranks most of the time
DIGEST = 16  # bytes of what a group is compared by


class Mismatch(RuntimeError):
    """The ranks of this job do not have the same groups."""


class Communicators:
    """The groups of this rank. `node`: the ranks of its node; `verifies`: see Counts. Raises
    ValueError where there is no default group."""

    def __init__(self, node: range, verifies: bool = False) -> None:
        if not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialized: call init_process_group() before protect()"
            )
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.generation = 0
        self.away: frozenset[int] = frozenset()  # the ranks that are, in this generation
        self._renewals = groups.Renewals()
        self.counts = Counts(self._renewals, node, verifies)

    @property
    def spent(self) -> str:
        """Why this process can take no further generation, "" if it can."""
        if self._renewals.used + 2 > groups.Renewals.LIMIT:
            return "its process groups have no room for further communicators"
        return ""

    def idle(self) -> int:
        """How many backends of former generations have not ended yet."""
        return self._renewals.dropped.left

    def begun(self) -> int:
        """How many collectives this process has begun on its groups; those whose backend does not
        count are left out, and those that are new. From any thread."""
        return self._renewals.begun()

    @property
    def present(self) -> tuple[int, ...]:
        """The ranks that are not away."""
        return tuple(rank for rank in range(self.world_size) if rank not in self.away)

    def attempt_failed(self) -> None:
        """Drop the groups that the attempt has made: they will be made again."""
        self._renewals.go_back()

    def rebuild(
        self,
        generation: int,
        host: str,
        port: int,
        built_at: int,
        limit: float,
        device: torch.device,
        *,
        away: frozenset[int] = frozenset(),
    ) -> None:
        """Put backends of `generation` into all groups, without the members that are `away`; all
        other ranks call this. Raises what the collective library raises, within about `limit`
        seconds, or at once for an interruption newer than `built_at`. Raises Mismatch if a member
        of a group does not have it."""
        if self.rank in away:
            raise ValueError(f"rank {self.rank} is among the ranks that are away: {sorted(away)}")
        self.away = away
        with suspended():
            self._rebuild(generation, host, port, built_at, limit, device)

    def _rebuild(
        self,
        generation: int,
        host: str,
        port: int,
        built_at: int,
        limit: float,
        device: torch.device,
    ) -> None:
        if self.away:
            shrunk_operators.install()
        left = leftovers.note(sockets.covered())
        sockets.cut()
        sockets.begin(built_at)
        try:
            connect = partial(
                dist.TCPStore,
                host,
                port,
                is_master=False,
                wait_for_workers=False,
                timeout=timedelta(seconds=limit),
            )
            store = connect()
            whole, *others = groups.present()
            begun = self._renewals.counts()
            used = [group for group in others if begun.get(group.handle)]
            prefix = dist.PrefixStore(f"taskd/{generation}", store)
            self._renewals.renew(whole, prefix, self.away)
            # gloo connects lazily under TORCH_GLOO_LAZY_INIT; one tiny collective makes every
            # connection before the list is fixed
            dist.all_reduce(torch.zeros(1, device=device))
            # ranks that are ahead, or new, have named others than the rest
            most, named = _most(len(others), groups.named(), device)
            groups.named(named)
            if most:
                _compare(others, most, self.rank, self.present)
                self._renew_others(others, connect, generation)
                if device.type != "cpu":
                    _connect(others, used, most, device, self.present)
        finally:
            sockets.end()
        if not self.away:
            shrunk_operators.remove()
        leftovers.release(left)
        self._renewals.dropped.let_go()
        set_up.real()
        groups.watch(sockets.extended)
        self.resumed(generation)

    def resumed(self, generation: int) -> None:
        """The groups take part in `generation`, with new backends or as they are."""
        self.generation = generation
        self.counts.built()

    def _renew_others(
        self, others: list[Group], connect: Callable[[], dist.Store], generation: int
    ) -> None:
        """Connect the groups concurrently. Every thread handles its groups in the order of their
        names, as on all other ranks, so all members of the first unconnected group are connecting
        it. Each thread has its own connection to the store, since waiting for a key blocks the
        connection."""
        count = min(AT_ONCE, len(others))
        if not count:
            return

        def renew(part: list[Group], own: dist.Store) -> None:
            for group in part:
                prefix = dist.PrefixStore(f"taskd/{generation}", own)
                self._renewals.renew(group, prefix, self.away)

        with concurrent.futures.ThreadPoolExecutor(count, "taskd-connect") as pool:
            made = [pool.submit(renew, others[i::count], connect()) for i in range(count)]
            for future in made:
                future.result()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside, the default group is one of torch's fake backend, as in a replacement's set-up:
        its collectives send nothing and wait for no rank. Afterwards the real one is back,
        untouched."""
        with fake_groups.aside(self.rank, self.world_size):
            yield


def _most(groups: int, named: int, device: torch.device) -> tuple[int, int]:
    """The largest numbers of any rank: of groups beside the default one, and of groups that it has
    named. A collective."""
    counts = torch.tensor([groups, named], dtype=torch.int64, device=device)
    dist.all_reduce(counts, dist.ReduceOp.MAX)
    most, named = counts.tolist()
    return most, named


def _connect(
    others: list[Group],
    used: list[Group],
    most: int,
    device: torch.device,
    present: tuple[int, ...],
) -> None:
    """Make the connections of the groups that some rank has used: NCCL makes them in a group's
    first collective, out of reach of an abort. A collective. `most`: see `_compare`."""
    row = b"".join(map(_digest, used)).ljust(most * DIGEST, b"\0")
    found = gather(torch.frombuffer(bytearray(row), dtype=torch.uint8), present).values()
    rows = [bytes(row.tolist()) for row in found]
    wanted = {data[i : i + DIGEST] for data in rows for i in range(0, len(data), DIGEST)}
    # in the same order on all ranks
    for group in sorted(others, key=lambda group: group.name):
        if _digest(group) in wanted and any(d.type == device.type for d in _devices(group)):
            group.handle.allreduce([torch.zeros(1, device=device)]).wait()


def _devices(group: Group) -> list[torch.device]:
    handle: Any = group.handle
    return list(handle._device_types)


def _compare(others: list[Group], most: int, rank: int, present: tuple[int, ...]) -> None:
    """Raise Mismatch unless every present member of each of `others` has a group of that name,
    those ranks and that backend. `most`: the largest number of groups of a rank. A collective."""
    ours = [_digest(group) for group in others]
    row = b"".join(ours).ljust(most * DIGEST, b"\0")
    mine = torch.frombuffer(bytearray(row), dtype=torch.uint8)
    theirs: dict[int, set[bytes]] = {}
    for other, found in gather(mine, present).items():
        data = bytes(found.tolist())
        theirs[other] = {data[i : i + DIGEST] for i in range(0, len(data), DIGEST)}
    for group, digest in zip(others, ours, strict=True):
        without = [r for r in group.ranks if r in theirs and digest not in theirs[r]]
        if without:
            raise Mismatch(
                f"rank {rank} has the process group {group.name!r} of ranks {list(group.ranks)},"
                f" ranks {without} do not: every rank has to make the same groups in the same"
                " order, before protect() or in the loop of all ranks"
            )


def _digest(group: Group) -> bytes:
    text = f"{group.name} {group.ranks} {group.backend}"
    return hashlib.blake2b(text.encode(), digest_size=DIGEST).digest()
