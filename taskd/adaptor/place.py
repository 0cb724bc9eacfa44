"""This launcher's place in the job, from torch's options and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import WorkerGroup, WorkerSpec

from taskd import settings
from taskd.adaptor import launcher
from taskd.adaptor.rendezvous import Rendezvous
from taskd.protocol.addresses import Address

# `taskd run` has started the job's first manager: starts it again for another number of nodes
start_again: Callable[[int], None] | None = None


class Place:
    """The launcher's place. `node`: its number; -1 if the launchers have yet to agree on it.
    `nodes`: their number, known to static rendezvous, which the documented launchers use, and to
    c10d's, where it is the highest that --nnodes allows. `most_nodes`: the maximum in any
    rendezvous; at least 2 for a standby. `rendezvous`: of launchers that meet by c10d."""

    def __init__(self, spec: WorkerSpec, group: WorkerGroup) -> None:
        self._group, self._master = group, spec.master_addr
        handler: Any = spec.rdzv_handler
        self.rendezvous = handler if isinstance(handler, Rendezvous) else None
        self._meets_at = ""  # the host near which a job of several nodes has its first manager
        if self.rendezvous is not None:
            self.nodes = self.most_nodes = self.rendezvous.nodes
            self.node = 0 if self.nodes == 1 else -1
            self._meets_at = self.rendezvous.host if self.nodes > 1 else ""
        else:
            most = int(getattr(getattr(handler, "settings", None), "max_nodes", 0))
            self.nodes = int(getattr(handler, "world_size", 1))
            self.node = int(getattr(handler, "rank", 0 if most == 1 else -1))
            self.most_nodes = most or self.nodes
        # where node 0 has the store in which launchers meet, of another node
        self.meets: Address | None = None
        if self.node > 0 and (first := getattr(handler, "master_addr", "")):
            self.meets = str(first), int(handler.master_port)
        if settings.standby(os.environ):
            self.most_nodes = max(self.most_nodes, 2)

    def manager(self) -> Address:
        """The address of the job's manager."""
        group = self._group
        if self._meets_at:
            return launcher.manager_at(self._meets_at)
        here = group.group_world_size == 1 or self._first_looks_here(group.group_rank == 0)
        return launcher.manager(str(self._master or group.master_addr), here)

    def _first_looks_here(self, first: bool) -> bool:
        """Of several nodes without POD_IP, node 0 looks where the others do, and the manager is."""
        return first and (self.nodes == 1 or settings.own_address(os.environ) is not None)

    @property
    def knows_manager(self) -> bool:
        """Whether the first manager's place is known before the launchers have met."""
        named = settings.manager_is_named(os.environ)
        return bool(self._meets_at or self._master) or named

    def manager_before_all_have_met(self) -> Address:
        if self._meets_at:
            return launcher.manager_at(self._meets_at)
        return launcher.manager(str(self._master or ""), self._first_looks_here(self.node == 0))

    def settle(self) -> str | None:
        """The launchers have met: if they are fewer than --nnodes allows, they are the job's nodes
        from now on, and the one that has started the manager does so again. Returns why they are
        not protected otherwise."""
        met = self._group.group_world_size or 1
        if self.rendezvous is None or met == self.nodes:
            return None
        store: Any = self._group.store
        store.set(f"taskd/manager/{self._group.group_rank}", "here" if start_again else "")
        # all have just met, so each sets its own
        if not any(store.get(f"taskd/manager/{node}") for node in range(met)):
            return (
                f"{met} of {self.nodes} nodes have come, and the manager was started for"
                f" {self.nodes}: type --nnodes {met}, and start it for as many"
            )
        if start_again is not None:
            start_again(met)
        self.nodes = met
        return None

    def host(self) -> str:
        """This machine's address for the job's other launchers."""
        several = settings.standby(os.environ) or (self._group.group_world_size or 1) > 1
        return launcher.own_host(several, self.manager())
