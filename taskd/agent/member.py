"""This node as a member of its job: its manager, and its services for agents of other nodes."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from abc import abstractmethod
from typing import Any

from taskd import __version__
from taskd.agent.copies.service import Records
from taskd.agent.manager.managers import Managers
from taskd.agent.ranks.model import Node
from taskd.messages.values import About, FaultCount
from taskd.protocol import addresses
from taskd.protocol.keys import Keys


class Member(Node):
    """Used by the agent's thread except where noted."""

    def __init__(self, keys: Keys, job: str) -> None:
        super().__init__()
        self.keys, self.job = keys, job
        self.identity = keys.identity()
        self.managers: Managers | None = None
        self.records: Records | None = None
        self.keepers: tuple[int, ...] = ()  # the nodes that keep our ranks' records
        self.about = about()
        self.faults = FaultCount()  # in this container; also set by the launcher's thread
        self.condemned: tuple[int, ...] = ()  # ranks on hardware that is to leave the job
        self.switches = 0  # how often recovery has been switched, see to_agent.KeepSwitch

    @abstractmethod
    def announce(self) -> None:
        """Send the manager everything that it must know about this node."""

    def listen(self, store: Any, address: tuple[str, int], nodes: int, ports: range | None) -> None:
        """Serve other nodes: `store`, this agent's rendezvous store at `address`, and, in a job of
        several `nodes`, records, at one of `ports`. Called once, by the launcher's thread."""
        self.store, self.store_address, self.nodes = store, address, nodes
        if nodes > 1:
            self.records = Records(
                address[0], self.keys, self.identity, self.job, self.report_later, ports
            )

    @property
    def addresses(self) -> tuple[tuple[str, int], tuple[str, int]]:
        """Where other nodes reach the store, and send their records."""
        if self.records is not None:
            return self.store_address, self.records.address
        assert self.managers is not None
        return self.store_address, (self.managers.here, 0)

    def connect(self, address: tuple[str, int], node: int) -> None:
        """Connect to the manager, first at `address`, as `node`. Called once, by the launcher's
        thread."""
        # in a job of one node the next manager can only be where the first one was
        if self.records is not None:
            here = self.records.address[0]
        else:
            here = address[0] if addresses.is_here(address[0]) else ""
        self.managers = Managers(
            address, self.keys, self.identity, self.job, node, self.nodes, here, self.announce
        )

    @property
    def name(self) -> str:
        """This process's name to managers."""
        return self.identity.name

    @property
    def obeyed(self) -> tuple[int, str]:
        """Term and name of the manager acknowledged last."""
        assert self.managers is not None
        return self.managers.obeyed

    def report(self, message: Any) -> None:
        """Send to the manager."""
        assert self.managers is not None
        self.managers.send(message)

    def report_later(self, message: Any) -> None:
        """The same, from another thread."""
        self.call(lambda: self.report(message))


def about() -> About:
    zone = time.localtime().tm_gmtoff
    torch = getattr(sys.modules.get("torch"), "__version__", "")  # the launcher's
    return About(
        host=socket.gethostname()[:253],
        system=f"{platform.system()} {platform.release()} {platform.machine()}"[:128],
        cpus=os.cpu_count() or 0,
        zone=zone,
        python=platform.python_version(),
        torch=str(torch)[:128],
        taskd=__version__,
    )
