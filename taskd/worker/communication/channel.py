"""The rank's connection to its agent: a local socket whose ends know each other's process."""

from __future__ import annotations

import os
import select
import socket
from typing import Any

from taskd import raised
from taskd.messages import codec


class AgentGone(raised.Told, ConnectionError):
    """The agent has closed its end: the launcher has ended, and the rank must not outlive it."""


class Channel:
    """Sends whole messages (SOCK_SEQPACKET), from any thread; receives them, in one thread."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        # the agent's loop answers in microseconds; a stopped agent must not block training forever
        self._socket.settimeout(10.0)
        self._socket.connect("\0" + name)
        self._socket.settimeout(None)
        self._pid = os.getpid()
        # another thread watches the agent over a channel of its own, and clears this when that one
        # ends
        self.attended = False

    def send(self, message: Any) -> None:
        # a forked child (a data loader's worker) must not send as the rank
        if os.getpid() != self._pid:
            return
        try:
            self._socket.send(codec.encode(message))
        except OSError as error:
            raise AgentGone(f"the agent no longer listens: {error}") from None

    def receive(self, timeout: float | None = None) -> Any | None:
        """The next message; None after `timeout` seconds. Raises AgentGone."""
        if timeout is not None and not select.select([self._socket], [], [], timeout)[0]:
            return None
        try:
            data = self._socket.recv(codec.MAX_BYTES)
        except OSError as error:
            raise AgentGone(f"the agent no longer listens: {error}") from None
        if not data:
            raise AgentGone("the agent has closed the connection")
        return codec.TO_RANK.decode(data)

    def check(self) -> None:
        """Raise AgentGone if the agent has ended. The system call takes 20 us with cold caches; it
        is not needed while another thread watches (`attended`)."""
        try:
            if not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                raise AgentGone("the launcher has ended, and this rank ends with it")
        except BlockingIOError:
            pass

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()
