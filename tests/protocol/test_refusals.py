"""A manager that refuses a key is told from one that hangs up once, and from silence."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from taskd.protocol import link as links
from taskd.protocol.keys import derive
from taskd.protocol.link import Link


@pytest.fixture
def server():
    """Ends so many connections at once, and holds the others without a word."""
    listening = socket.create_server(("127.0.0.1", 0))
    held: list[socket.socket] = []

    def serve(ends: int) -> tuple[str, int]:
        def run() -> None:
            left = ends
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                left -= 1
                connection.close() if left >= 0 else held.append(connection)

        threading.Thread(target=run, daemon=True).start()
        return listening.getsockname()

    yield serve
    listening.close()
    for connection in held:
        connection.close()


@pytest.mark.parametrize(
    ("ends", "refusals", "told"), [(1, 1, False), (1_000, links.REFUSALS, True)]
)
def test_a_contact_that_fails_counts_once(server, caplog, ends, refusals, told):
    link = Link(server(ends), derive(b"secret"), "job", 0)
    try:
        deadline = time.monotonic() + 30
        while link.refusals < refusals and time.monotonic() < deadline:
            link.monitor.poll(100)
            link.read_monitor()
        end = time.monotonic() + 0.3
        while not told and time.monotonic() < end:
            link.monitor.poll(50)
            link.read_monitor()
    finally:
        link.close()
    assert link.refusals == refusals if not told else link.refusals >= refusals
    assert ("refuses this key" in caplog.text) is told
