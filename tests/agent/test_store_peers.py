"""Who reaches the stores that a launcher makes: real sockets, real stores."""

from __future__ import annotations

import gc
import logging
import select
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from taskd.adaptor import stores
from taskd.agent import store_peers
from taskd.agent.store_peers import StorePeers
from taskd.core.networks import LOOPBACK
from taskd.protocol import door

LIMIT = 20.0


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """This machine's loopback is not let in by itself: 127.0.0.N are the job's and strangers."""
    assert door.LOOPBACK == LOOPBACK
    monkeypatch.setattr(door, "LOOPBACK", ())
    monkeypatch.setattr(store_peers, "_own", lambda host: (host,))


def reaches(address, sender: str) -> bool:
    """Whether a store answers a connection from there: it waits for a request, others' are closed
    when the launcher looks."""
    with socket.create_connection(address, LIMIT, (sender, 0)) as line:
        # a client's first words: the request to check the protocol, and a ping
        line.sendall(b"\x00" + (0x3C85F7CE).to_bytes(4, "little") + b"\x0d" + bytes(4))
        return bool(select.select([line], [], [], 2.0)[0]) and line.recv(4) != b""


def read(address) -> int:
    import torch.distributed as dist

    client = dist.TCPStore(
        *address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=LIMIT)
    )
    return int(client.num_keys())


def test_before_a_manager_tells_only_this_machine_is_let_in():
    peers = StorePeers(())
    store, address = stores.make("127.0.0.1", None, peers)
    store.set("a", "b")
    assert read(address) >= 1
    assert not reaches(address, "127.0.0.7")
    peers.told(("127.0.0.7", "not an address"))
    assert reaches(address, "127.0.0.7") and not reaches(address, "127.0.0.8")
    assert read(address) >= 1


def test_ranks_that_no_manager_knows_of_are_let_in_until_one_tells():
    peers = StorePeers(())
    _store, address = stores.make("127.0.0.1", None, peers, at_once=False)
    assert reaches(address, "127.0.0.7")
    peers.told(("127.0.0.8",))
    assert not reaches(address, "127.0.0.7") and reaches(address, "127.0.0.8")
    # a store that is made later
    _other, another = stores.make("127.0.0.1", None, peers, at_once=False)
    assert not reaches(another, "127.0.0.7") and reaches(another, "127.0.0.8")


def test_others_are_closed_and_named_once_in_a_while(caplog):
    peers = StorePeers(())
    _store, address = stores.make("127.0.0.1", None, peers)
    with caplog.at_level(logging.WARNING):
        for now in (0.0, 1.0, store_peers.QUIET + 1.0):
            with socket.create_connection(address, LIMIT, ("127.0.0.7", 0)) as line:
                peers.look(now)
                assert line.recv(1) == b""
    said = [r.getMessage() for r in caplog.records if "TASKD_STORE_PEERS" in r.getMessage()]
    assert len(said) == 2 and all("from 127.0.0.7 were closed" in text for text in said)


def test_nobody_is_kept_away_where_that_is_set_or_the_kernel_cannot(monkeypatch, caplog):
    _store, address = stores.make("127.0.0.1", None, StorePeers(None))
    assert reaches(address, "127.0.0.7")

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(door.Door, "_attach", refuse)
    peers = StorePeers(())
    _store, address = stores.make("127.0.0.1", None, peers)
    assert reaches(address, "127.0.0.7")
    assert "the kernel does not choose who reaches" in caplog.text
    peers.told(("127.0.0.8",))
    peers.look(0.0)


def test_strangers_are_kept_away_as_long_as_a_store_serves():
    """It does when Python has forgotten its object, and something of torch's has not."""
    import torch.distributed as dist

    peers = StorePeers(())
    store, address = stores.make("127.0.0.1", None, peers)
    peers.told(("127.0.0.7",))
    holder = dist.PrefixStore("of torch's", store)
    del store
    gc.collect()
    peers.look(0.0)
    assert reaches(address, "127.0.0.7") and not reaches(address, "127.0.0.8")
    peers.told(("127.0.0.8",))
    assert reaches(address, "127.0.0.8") and not reaches(address, "127.0.0.7")
    del holder
    peers.look(0.0)
    socket.create_server(address).close()


# a launcher ends: what is registered first is done last
ENDS = """
import atexit
atexit.register(lambda: print([t.reaches(address, f"127.0.0.{n}") for n in (7, 8)]))
from tests.agent import test_store_peers as t
t.door.LOOPBACK, t.store_peers._own = (), lambda host: (host,)
peers = t.StorePeers(())
store, address = t.stores.make("127.0.0.1", None, peers)
peers.told(("127.0.0.7",))
"""


def test_strangers_are_kept_away_while_the_launcher_ends():
    command, root = [sys.executable, "-c", ENDS], Path(__file__).parents[2]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=root, timeout=5 * LIMIT)
    assert done.stdout == "[True, False]\n"


def test_the_port_is_free_once_the_store_is_gone():
    peers = StorePeers(())
    store, address = stores.make("127.0.0.1", None, peers)
    with pytest.raises(OSError, match="in use"):
        socket.create_server(address)
    del store
    peers.told(())
    socket.create_server(address).close()


def test_it_makes_stores_in_a_range_of_ports():
    peers = StorePeers(())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        made = [stores.make("127.0.0.1", range(port, port + 20), peers) for _ in range(3)]
    assert len({address for _, address in made}) == 3
    assert all(port < address[1] < port + 20 for _, address in made)
