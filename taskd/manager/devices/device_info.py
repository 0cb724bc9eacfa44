"""What device-info says of the devices of the job's agents: told by them, or read by the manager.

An agent speaks for the devices of its own ranks alone, and needs no permission of an operator's
kind: see docs/security.md.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from taskd.manager.devices.api import DeviceInfoLine
from taskd.manager.devices.codes import DeviceCodes
from taskd.manager.devices.watch import names
from taskd.manager.following.sources import Feed
from taskd.manager.peers import Dropped, Peer
from taskd.messages import from_agent
from taskd.mindcluster.faults import device_info
from taskd.mindcluster.faults.chips import Chip, Fault
from taskd.mindcluster.faults.device_info import NodeInfo
from taskd.mindcluster.faults.findings import Broken
from taskd.mindcluster.faults.names import BadCode, parse_code

Told = from_agent.DevicesFound | from_agent.DevicesAt

log = logging.getLogger("taskd.manager.devices")


class Members(Protocol):
    @property
    def peers(self) -> Collection[Peer]: ...

    def follow_devices(self, peer: Peer, found: Sequence[Chip], now: float) -> None: ...


class DeviceInfo:
    """A source of the manager. `members`: the agents that are part of the job."""

    def __init__(self, members: Members, codes: DeviceCodes, line: DeviceInfoLine) -> None:
        self._members, self._codes, self._line = members, codes, line
        self._nodes: dict[str, NodeInfo] = {}  # as read last, by name
        # devices that are to be written, when that was last looked at; None: look again
        self._unnamed: set[str] | None = set()

    @property
    def descriptor(self) -> int:
        return self._line.descriptor

    def close(self) -> None:
        self.separate()
        self._line.close()

    def take(self, peer: Peer, message: Told, now: float) -> None:
        """Handle a message of an agent or a standby. Raises Dropped."""
        if isinstance(message, from_agent.DevicesFound):
            found = [_chip(state) for state in message.devices]
            self._members.follow_devices(peer, found, now)
            return
        peer.host, peer.chips = message.host, message.chips
        self._line.want({other.host for other in self._members.peers if other.host})
        if (node := self._nodes.get(peer.host)) is not None:
            self._follow(peer, node, now)

    def look(self, feed: Feed, now: float) -> None:
        for host, data in self._line.newest().items():
            try:
                node = self._nodes[host] = device_info.parse(data)
            except Broken as error:
                log.error("the device-info of node %s is not used: %s", host[:100], error)
                continue
            for peer in [peer for peer in self._members.peers if peer.host == host]:
                self._follow(peer, node, now)

    def _follow(self, peer: Peer, node: NodeInfo, now: float) -> None:
        self._unnamed = None
        self._members.follow_devices(peer, [node.of(chip) for chip in peer.chips], now)

    # -- devices that taskd has separated ----------------------------------------------------------

    def separate(self) -> None:
        """Have them written where they have to be."""
        if not self._line.writes or self._unnamed == (unnamed := self._codes.unnamed):
            return
        self._unnamed = unnamed
        chips: dict[str, set[str]] = {}
        for host, name in self._written_as(unnamed):
            chips.setdefault(host, set()).add(name)
        self._line.separate({host: frozenset(found) for host, found in chips.items()})

    def _written_as(self, devices: set[str]) -> Iterator[tuple[str, str]]:
        """The node and the name there of each device, as far as they are known."""
        for peer in self._members.peers if devices else ():
            known: Mapping[int, str] = self._nodes.get(peer.host, NodeInfo()).names
            for device, chip in zip(names(peer), peer.chips, strict=False):
                if device in devices and chip in known:
                    yield peer.host, known[chip]


def _chip(state: from_agent.DeviceState) -> Chip:
    """Raises Dropped."""
    try:
        codes = {parse_code(text): Fault(time, minor) for text, time, minor in state.codes}
    except BadCode as error:
        raise Dropped("device-info", str(error)) from None
    return Chip(codes, state.separated, state.recovering)
