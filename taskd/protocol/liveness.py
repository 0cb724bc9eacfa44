"""Finds out whether an agent that is not connected is gone, by asking its machine, which knows at
once.

A connection ends when the remote process does, and also when something in between resets it. The
agent listens for other agents' records; if nothing listens on that port any more, its process has
ended. If its machine does not answer at all, or accepts and sends nothing (a stopped process), it
counts as gone. A greeting means that it is alive and will reconnect.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from dataclasses import dataclass

from taskd.protocol import addresses
from taskd.protocol.addresses import Address

GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


@dataclass(frozen=True)
class Gone:
    """Why the agent `who` counts as gone. `ended`: its machine says so; otherwise it is silent, and
    the agent may still be there."""

    who: str
    why: str
    ended: bool


@dataclass
class _Probe:
    connection: socket.socket
    due: float
    connected: bool = False
    code: int = 0  # the connection's error, if it failed at once


class LivenessProbe:
    """Probes agents, or other processes that greet those who connect. The caller polls the
    descriptors in `wanted`, and calls `poll` when they are ready or `due` has passed."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds after which an agent whose machine does not answer counts as gone."""
        self._limit = limit
        self._probes: dict[str, _Probe] = {}

    def ask(self, who: str, address: Address, now: float) -> None:
        """Start a probe of `who`, unless one runs. `poll` has the answer, perhaps at once."""
        if who in self._probes:
            return
        family = addresses.family(address[0])
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # too many open files, when thousands of connections have ended at once
            return  # if it is gone, its silence will show
        code = connection.connect_ex(address)
        if code in (0, errno.EINPROGRESS, *GONE):
            at_once = code if code in GONE else 0
            self._probes[who] = _Probe(connection, now + self._limit, code=at_once)
        else:
            connection.close()

    def forget(self, who: str) -> None:
        probe = self._probes.pop(who, None)
        if probe is not None:
            probe.connection.close()

    @property
    def wanted(self) -> list[tuple[int, bool]]:
        """(descriptor, whether to poll it for writing)."""
        return [(p.connection.fileno(), not p.connected) for p in self._probes.values()]

    @property
    def due(self) -> float | None:
        return min((p.due for p in self._probes.values()), default=None)

    def poll(self, now: float) -> list[Gone]:
        """The agents that are gone."""
        found: list[Gone] = []
        for who, probe in list(self._probes.items()):
            verdict = self._hear(probe)
            if verdict:
                found.append(Gone(who, verdict, True))
            elif verdict is None and now >= probe.due:
                why = "its connection has ended, and its machine does not answer"
                found.append(Gone(who, why, False))
            elif verdict is None:
                continue
            self.forget(who)
        return found

    def _hear(self, probe: _Probe) -> str | None:
        """Why the agent is gone; "" if it is alive; None: not known yet."""
        if not probe.connected:
            code = probe.code or probe.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code in GONE:
                return f"its process has ended ({errno.errorcode[code]})"
            if code:
                return None  # its machine is unreachable, for now: wait
            with contextlib.suppress(OSError):
                probe.connection.getpeername()
                probe.connected = True
            if not probe.connected:
                return None
        try:
            # the greeting comes from a thread that lives as long as the process and does nothing
            # else
            return "" if probe.connection.recv(1) else "its process has ended"
        except BlockingIOError:
            return None
        except OSError as error:
            return "its process has ended" if error.errno in GONE else None

    def close(self) -> None:
        for who in list(self._probes):
            self.forget(who)
