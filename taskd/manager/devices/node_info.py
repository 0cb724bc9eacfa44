"""Reads the device-info of the job's nodes from the Kubernetes API and writes back the devices that
taskd has separated, as TASKD_DEVICE_INFO configures."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from taskd import settings
from taskd.manager.devices.state import Devices, names
from taskd.manager.following import kubernetes
from taskd.manager.following.sources import Feed
from taskd.manager.peers import Peer
from taskd.messages.from_agent import DevicesAt
from taskd.messages.values import DeviceState
from taskd.mindcluster.faults import device_info
from taskd.mindcluster.faults.device_info import NodeInfo
from taskd.mindcluster.faults.findings import Broken
from taskd.settings import Api

if TYPE_CHECKING:
    from taskd.kubernetes.configmaps import ConfigMaps
    from taskd.kubernetes.separations import Separations

log = logging.getLogger("taskd.manager.devices")


class Members(Protocol):
    @property
    def peers(self) -> Collection[Peer]: ...

    def follow_devices(self, peer: Peer, found: Sequence[DeviceState], now: float) -> None: ...


class NodeInfos:
    """A source of the manager. Call `serve()` first. `maps`: None if nothing is read by the API;
    `separations`: None if nothing is written."""

    def __init__(
        self, maps: ConfigMaps | None = None, separations: Separations | None = None
    ) -> None:
        self._maps, self._separations = maps, separations
        self.descriptor = -1 if maps is None else maps.descriptor
        self._nodes: dict[str, NodeInfo] = {}  # as read last, by name
        # devices to be written, as of the last check; None: check again
        self._unnamed: set[str] | None = set()

    def serve(self, members: Members, devices: Devices) -> None:
        """`members`: the agents that are part of the job."""
        self._members, self._devices = members, devices

    def close(self) -> None:
        if self._read():  # it may have come with what has ended the job
            self._unnamed = None
        self.separate()
        for part in (self._maps, self._separations):
            if part is not None:
                part.close()

    def at(self, peer: Peer, message: DevicesAt, now: float) -> None:
        """An agent has reported where its devices are."""
        peer.host, peer.chips = message.host, message.chips
        if self._maps is not None:
            self._maps.want({other.host for other in self._members.peers if other.host})
        self._follow(peer, now)

    def poll(self, feed: Feed, now: float) -> None:
        for host in self._read():
            for peer in [peer for peer in self._members.peers if peer.host == host]:
                self._follow(peer, now)

    def _read(self) -> list[str]:
        """The nodes whose device-info is new."""
        new = []
        for host, data in {} if self._maps is None else self._maps.newest().items():
            try:
                self._nodes[host] = device_info.parse(data)
            except Broken as error:
                log.error("the device-info of node %s is not used: %s", host[:100], error)
            else:
                new.append(host)
        return new

    def _follow(self, peer: Peer, now: float) -> None:
        if (node := self._nodes.get(peer.host)) is not None:
            self._unnamed = None
            self._members.follow_devices(peer, [node.of(chip) for chip in peer.chips], now)

    def separate(self) -> None:
        """Write the devices that taskd has separated into device-info."""
        if self._separations is None or self._unnamed == (unnamed := self._devices.unnamed):
            return
        self._unnamed = unnamed
        chips: dict[str, set[str]] = {}
        for peer in self._members.peers if unnamed else ():
            known: Mapping[int, str] = self._nodes.get(peer.host, NodeInfo()).names
            for name, chip in zip(names(peer), peer.chips, strict=False):
                if name in unnamed and chip in known:
                    chips.setdefault(peer.host, set()).add(known[chip])
        self._separations.want({host: frozenset(found) for host, found in chips.items()})


def make(environ: Mapping[str, str]) -> NodeInfos:
    """Raises settings.BadSetting."""
    asked = settings.device_info(environ)
    if not isinstance(asked, Api) or (way := kubernetes.access(environ)) is None:
        return NodeInfos()
    from taskd.kubernetes.configmaps import ConfigMaps
    from taskd.kubernetes.separations import Separations

    return NodeInfos(
        ConfigMaps(way, device_info.KEYS), Separations(way) if asked is Api.WRITE else None
    )
