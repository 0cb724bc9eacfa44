"""Finds out whether an agent whose connection has ended is gone, by asking its machine, which knows
at once.

A connection ends when the remote process does, and also when something in between resets it. The
agent listens for other agents' records; if nothing listens on that port any more, its process has
ended. If its machine does not answer at all, or accepts and sends nothing (a stopped process), it
counts as gone. A greeting means that it is alive and will reconnect.
"""

from __future__ import annotations

import contextlib
import errno
import socket
from collections.abc import Hashable
from dataclasses import dataclass

GONE = (errno.ECONNREFUSED, errno.ECONNRESET, errno.EPIPE)


@dataclass
class _Probe:
    connection: socket.socket
    due: float
    connected: bool = False


class LivenessProbe:
    """Probes agents. The caller polls the descriptors in `wanted`, and calls `look` when they are
    ready or `due` has passed."""

    def __init__(self, limit: float) -> None:
        """`limit`: seconds after which an agent whose machine does not answer counts as gone."""
        self._limit = limit
        self._probes: dict[Hashable, _Probe] = {}

    def ask(self, who: Hashable, address: tuple[str, int], now: float) -> str | None:
        """Start a probe of `who`, unless one runs. Returns why it is gone if that is known at
        once."""
        if who in self._probes:
            return None
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        except OSError:  # too many open files, when thousands of connections have ended at once
            return None  # if it is gone, its silence will show
        code = connection.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            connection.close()
            return (
                f"its process has ended ({errno.errorcode.get(code, code)})"
                if code in GONE
                else None
            )
        self._probes[who] = _Probe(connection, now + self._limit)
        return None

    def forget(self, who: Hashable) -> None:
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

    def poll(self, now: float) -> list[tuple[Hashable, str]]:
        """The agents that are gone, and why."""
        found: list[tuple[Hashable, str]] = []
        for who, probe in list(self._probes.items()):
            verdict = self._hear(probe)
            if verdict is None and now >= probe.due:
                verdict = "its connection has ended, and its machine does not answer"
            if verdict is not None:
                self.forget(who)
                if verdict:
                    found.append((who, verdict))
        return found

    def _hear(self, probe: _Probe) -> str | None:
        """Why the agent is gone; "" if it is alive; None: not known yet."""
        if not probe.connected:
            code = probe.connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
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
