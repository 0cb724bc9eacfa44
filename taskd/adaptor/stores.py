"""Rendezvous stores: those that this launcher makes, and the one where restarted ranks meet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from taskd.protocol import addresses
from taskd.protocol.addresses import Address

# for launchers to stop their ranks and begin a restart; torch gives ranks 30 s to end
MEET = timedelta(seconds=120)
# an agent's store exists before the order that names it: if it does not answer, its node is lost
CONNECT = timedelta(seconds=10)
BACKLOG = 4096  # all ranks of a job connect at once


def make(host: str, ports: range | None) -> tuple[Any, Address]:
    """Make a store at this machine's address `host`, at one of `ports`. Anyone who reaches it can
    connect: only the network keeps others away, see docs/security.md. Raises OSError."""
    # a listening socket of one family: with torch's own, of both, every client's address is looked
    # up by name, and a silent name server delays each rebuild by 5 s
    family = addresses.family(host)
    listener = addresses.any_port(
        ports, lambda port: socket.create_server((host, port), family=family, backlog=BACKLOG)
    )
    port = listener.getsockname()[1]
    kind: dict[str, Any] = {} if _libuv_takes_sockets() else {"use_libuv": False}
    store = dist.TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
        **kind,
    )
    return store, (host, port)


def _libuv_takes_sockets() -> bool:
    """Whether torch's default server accepts a socket; before 2.8 only its older one does. Only the
    version shows this: trying prints an error."""
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


def reach(address: Address) -> Any:
    """Connect to another agent's store. Raises what torch raises where that agent is gone."""
    store = dist.TCPStore(*address, is_master=False, wait_for_workers=False, timeout=CONNECT)
    store.set_timeout(MEET)
    return store


class Meeting:
    """Gives each restart of all ranks a new store to meet in. In an old store gloo finds addresses
    of dead processes: of six plain restarts, for which torch 2.13 reuses the store, two hung and
    two needed several attempts."""

    def __init__(self, make_store: Callable[[], tuple[Any, Address]]) -> None:
        self._make_store = make_store
        self._store: Any = None  # if this launcher made it

    def arrange(self, board: Any, attempt: int | str, ours: bool) -> Address:
        """Return the store's address. `ours`: this launcher makes it, and publishes its address on
        the `board`, which all can read."""
        key = f"taskd/attempt/{attempt}"
        if ours:
            self._store, (host, port) = self._make_store()
            board.set(key, f"{host} {port}")
        host, number = board.get(key).decode().split()
        return host, int(number)
