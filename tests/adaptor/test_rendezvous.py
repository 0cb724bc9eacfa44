"""torch's c10d rendezvous under a manager: launchers meet once, and what keeps them from it is told
in a line."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.elastic.rendezvous import RendezvousParameters

from taskd.adaptor import launcher
from taskd.adaptor.rendezvous import Rendezvous, handler, host
from taskd.protocol import addresses

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from ports import free_port


def launchers(number: int, port: int, least: int = 2, **more: object) -> list[Rendezvous]:
    """Of one job of two nodes."""
    given = RendezvousParameters("c10d", f"127.0.0.1:{port}", "one", least, 2, **more)
    made = [handler(given) for _ in range(number)]
    assert all(isinstance(one, Rendezvous) for one in made)
    return made


def met(them: list[Rendezvous]) -> None:
    threads = [meeting(one) for one in them]
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)


def meeting(one: Rendezvous) -> threading.Thread:
    def meet() -> None:
        with contextlib.suppress(SystemExit):
            one.next_rendezvous()

    thread = threading.Thread(target=meet, daemon=True)
    thread.start()
    return thread


def test_under_a_manager_nobody_meets_again():
    """Nor asks the store, whose host may be lost; one that has ended the rendezvous lets others
    meet."""
    first, second, late = launchers(3, free_port(), least=1, last_call_timeout=1)
    met([first])
    waiting, end = meeting(second), time.monotonic() + 60
    while first.num_nodes_waiting() == 0:
        assert time.monotonic() < end
    first.supervisor = SimpleNamespace(managed=True)
    assert first.num_nodes_waiting() == 0
    assert first.shutdown()
    late.open()
    assert not late.is_closed(), "a launcher that left has closed the rendezvous for the others"
    assert late.shutdown() and late.is_closed()
    waiting.join(60)


def test_a_standby_needs_no_store():
    (standby,) = launchers(1, free_port())
    assert standby.use_agent_store and standby.get_run_id() == "one"
    assert standby.num_nodes_waiting() == 0 and standby.shutdown()


def test_an_endpoint_that_does_not_answer():
    (one,) = launchers(1, free_port(), is_host="false", read_timeout=1)
    with pytest.raises(SystemExit, match="rdzv_endpoint 127.0.0.1:[0-9]+ does not answer .* start"):
        one.open()


def test_too_few_come_or_all_have_left():
    (one,) = launchers(1, port := free_port(), join_timeout=1)
    with pytest.raises(SystemExit, match=f"2 launchers or more.*--rdzv_id one at port {port}"):
        one.next_rendezvous()
    one.shutdown()
    with pytest.raises(SystemExit, match=f"of --rdzv_id one at port {port} have ended"):
        one.next_rendezvous()


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [("h:1", "h"), ("h", "h"), ("", "localhost"), ("[::1]:5", "::1"), ("[fd00::1]", "fd00::1")],
)
def test_the_host_of_an_endpoint(endpoint, found):
    assert host(endpoint) == found


NAMES = {
    "both": ["fd00::7", "192.0.2.7"],
    "debian": ["127.0.1.1"],
    "elsewhere": ["192.0.2.9"],
    "localhost": ["::1", "127.0.0.1"],
    "new": ["fd00::7"],
}


@pytest.fixture
def names(monkeypatch):
    """What names lead to; this machine has the addresses that end in 7."""

    def look_up(name, *_, **__):
        found = NAMES.get(name, [name] if name[-1].isdigit() else [])
        if not found:
            raise socket.gaierror
        return [(0, 0, 0, "", (address, 0)) for address in found]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", look_up)
    local = ("127.0.0.1", "127.0.1.1", "::1")
    monkeypatch.setattr(addresses, "is_here", lambda a: a in local or a.endswith("7"))
    monkeypatch.delenv("POD_IP", raising=False)
    monkeypatch.delenv("TASKD_MANAGER_ADDR", raising=False)
    monkeypatch.setenv("TASKD_PORT", "9601")


@pytest.mark.parametrize(
    ("endpoint", "own", "found"),
    [
        ("both", "", "192.0.2.7"),
        ("both", "fd00::7", "fd00::7"),
        ("both", "10.0.0.7", "192.0.2.7"),  # the others know only the name
        ("debian", "", "127.0.1.1"),
        ("debian", "192.0.2.7", "192.0.2.7"),
        ("192.0.2.7", "10.0.0.7", "192.0.2.7"),
        ("127.0.0.1", "127.0.0.2", "127.0.0.1"),  # hosts of a test
        ("localhost", "192.0.2.7", "127.0.0.1"),
        ("elsewhere", "192.0.2.7", None),
        ("nowhere", "192.0.2.7", None),
    ],
)
def test_where_a_manager_listens(names, monkeypatch, endpoint, own, found):
    monkeypatch.setenv("POD_IP", own)
    assert launcher.here(endpoint) == found
    if found is not None:
        assert launcher.manager_at(endpoint) == (found, 9601)


def test_where_others_find_it(names, monkeypatch):
    """At the address that answers, where a name leads to several."""
    monkeypatch.setattr(addresses, "is_here", lambda _: False)
    asked = []
    for answering in ("192.0.2.7", "fd00::7", ""):
        monkeypatch.setattr(addresses, "listens", lambda a, _, it=answering: a[0] == it)
        asked.append(launcher.manager_at("both")[0])
    assert asked == ["192.0.2.7", "fd00::7", "192.0.2.7"]
    assert launcher.manager_at("nowhere") == ("nowhere", 9601)
    monkeypatch.setenv("TASKD_MANAGER_ADDR", "[fd00::9]:4")
    assert launcher.manager_at("both") == ("fd00::9", 4)


def test_the_family_of_a_name(names):
    kinds = {n: addresses.family(n) for n in ("both", "new", "nowhere", "fd00::1", "192.0.2.1")}
    six = {name for name, kind in kinds.items() if kind is socket.AF_INET6}
    assert six == {"new", "fd00::1"}
