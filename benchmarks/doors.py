"""What it costs that a store lets in the job's hosts alone (taskd/protocol/door.py):

python benchmarks/doors.py
"""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable

from taskd.core.networks import network
from taskd.protocol.door import MOST, Door


def median(
    action: Callable[[], object], times: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """In microseconds."""
    taken = []
    for _ in range(times):
        began = clock()
        action()
        taken.append(clock() - began)
    return statistics.median(taken) * 1e6


def connecting(listener: socket.socket) -> Callable[[], None]:
    def connect() -> None:
        with socket.create_connection(listener.getsockname()):
            listener.accept()[0].close()

    return connect


def hosts(count: int) -> list[str]:
    return [f"10.{n >> 8}.{n & 255}.1" for n in range(count)]


def main() -> None:
    # the loopback is compared last: no sender costs more
    door = Door(("127.0.0.1", 0), [network(host) for host in hosts(MOST - 2)])
    with door.listener, socket.create_server(("127.0.0.1", 0), backlog=4096) as plain:
        for name, listener in (("a plain socket", plain), (f"{MOST} hosts", door.listener)):
            print(f"a connection, {name}: {median(connecting(listener), 3000):.1f} us")
        for count in (2, 100, 400, 1000, 10_000):
            texts = hosts(count)
            taken = median(
                lambda t=texts: door.let_in([network(h) for h in t]), 11, time.process_time
            )
            print(f"a new program, {count} hosts: {taken / 1e3:.2f} ms of CPU time")
    door.close()


if __name__ == "__main__":
    main()
