"""Rendezvous stores that this launcher makes, and where restarted ranks meet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from taskd.protocol import addresses
from taskd.protocol.addresses import Address

# that launchers may take to stop their ranks and come to a restart; torch gives ranks 30 s to end
MEET = timedelta(seconds=120)


def make(host: str) -> tuple[Any, Address]:
    """A store at this address of ours."""
    # a listening socket of one family: behind torch's own, of both, every client's address is
    # looked up in the name service, and a name server that does not answer then holds up every
    # rebuild for 5 s
    listener = socket.create_server((host, 0), family=addresses.family(host), backlog=4096)
    port = listener.getsockname()[1]
    store = dist.TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, (host, port)


def reach(address: Address) -> Any:
    """Another launcher's store."""
    return dist.TCPStore(*address, is_master=False, wait_for_workers=False, timeout=MEET)


class Meeting:
    """Where the ranks of a whole restart meet: in a store made for it. In one of before gloo finds
    addresses of dead processes: of six plain restarts, which torch 2.13 lets meet where the attempt
    before did, two hung and two needed several attempts."""

    def __init__(self, make_store: Callable[[], tuple[Any, Address]]) -> None:
        self._make_store = make_store
        self._store: Any = None  # if it is here

    def arrange(self, board: Any, attempt: int | str, ours: bool) -> Address:
        """`ours`: this launcher makes the store, and tells on the `board`, which all can read,
        where it is."""
        key = f"taskd/attempt/{attempt}"
        if ours:
            self._store, (host, port) = self._make_store()
            board.set(key, f"{host} {port}")
        host, number = board.get(key).decode().split()
        return host, int(number)
