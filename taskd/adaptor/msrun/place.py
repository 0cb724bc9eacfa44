"""Where this msrun is in its job, by what it has registered and its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from taskd import settings
from taskd.adaptor.msrun.workers import NotUsable
from taskd.protocol import addresses
from taskd.protocol.addresses import Address


@dataclass(frozen=True)
class Place:
    """`ranks`: by local rank. `nodes`: of the job, each with as many ranks."""

    ranks: dict[int, int]
    node: int
    nodes: int
    scheduler: str  # host of the scheduler, "" if unknown

    def manager(self, environ: Mapping[str, str] = os.environ) -> Address:
        """Where the job's first manager is: beside the scheduler, by the guides' shell lines."""
        host, port = settings.manager_address({**environ, "MASTER_ADDR": self.scheduler})
        if not settings.manager_is_named(environ) and self.node == 0:
            host = settings.bind_address(environ)
        return host, port

    def host(self, environ: Mapping[str, str] = os.environ) -> str:
        """This machine's address for the job's other agents."""
        if self.nodes == 1:
            return "127.0.0.1"
        return settings.own_address(environ) or addresses.towards(self.manager(environ))


def find(ranks: dict[int, int], environ: Mapping[str, str], scheduler: str) -> Place:
    """`scheduler`: msrun's --master_addr, if known. Raises NotUsable."""
    given = environ.get("MS_WORKER_NUM") or environ.get("RANK_SIZE") or str(len(ranks))
    world = int(given) if given.isascii() and given.isdigit() else 0
    each = len(ranks)
    if world < each or world % each:
        raise NotUsable(
            f"MS_WORKER_NUM={given!r}: it must be a multiple of the {each} workers of this node"
        )
    return Place(
        ranks, min(ranks.values()) // each, world // each, environ.get("MS_SCHED_HOST") or scheduler
    )
