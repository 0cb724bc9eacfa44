"""What device-info says of the devices of the job's agents: told by them, or read by the manager.

An agent speaks for the devices of its own ranks alone, and needs no permission of an operator's
kind: see docs/security.md.
"""

from __future__ import annotations

from taskd.manager.device_watch import DeviceWatch
from taskd.manager.peers import Dropped, Peer
from taskd.messages import from_agent
from taskd.mindcluster.faults.chips import Chip, Fault
from taskd.mindcluster.faults.names import BadCode, parse_code

Told = from_agent.DevicesFound | from_agent.DevicesAt


class DeviceInfo:
    def __init__(self, devices: DeviceWatch) -> None:
        self._devices = devices

    def take(self, peer: Peer, message: Told, now: float) -> None:
        """Handle a message of an agent or a standby. Raises Dropped."""
        if isinstance(message, from_agent.DevicesAt):
            peer.host, peer.chips = message.host, message.chips
        else:
            self._devices.follow(peer, [_chip(state) for state in message.devices], now)


def _chip(state: from_agent.DeviceState) -> Chip:
    """Raises Dropped."""
    try:
        codes = {parse_code(text): Fault(time, minor) for text, time, minor in state.codes}
    except BadCode as error:
        raise Dropped("device-info", str(error)) from None
    return Chip(codes, state.separated, state.recovering)
