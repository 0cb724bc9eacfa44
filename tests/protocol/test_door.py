"""Doors: their programs by an interpreter, the rest by the kernel."""

from __future__ import annotations

import ipaddress
import os
import select
import socket
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.core.networks import Network, network, widened
from taskd.protocol import door as d
from taskd.protocol.door import Door

LIMIT = 20.0  # seconds
IPV4 = st.builds(
    lambda address, length: ipaddress.ip_network((address, length), strict=False),
    st.integers(0, 2**32 - 1),
    st.integers(0, 32),
)
IPV6 = st.builds(
    lambda address, length: ipaddress.ip_network(
        (ipaddress.IPv6Address(address), length), strict=False
    ),
    st.integers(2**32, 2**128 - 1),
    st.integers(0, 128),
)
NETWORKS = st.lists(IPV4 | IPV6, max_size=40)
ADDRESSES = st.one_of(
    st.builds(ipaddress.IPv4Address, st.integers(0, 2**32 - 1)),
    st.builds(ipaddress.IPv6Address, st.integers(0, 2**128 - 1)),
)


def packet(sender) -> bytes:
    """The IP header as far as a program reads it."""
    if sender.version == 4:
        return bytes([0x45, *[0] * 11]) + sender.packed + bytes(4)
    return bytes([0x60, *[0] * 7]) + sender.packed + bytes(16)


def run(instructions: list[d.Instruction], header: bytes) -> int:
    """What classic BPF does, as far as the programs use it."""
    at = accumulator = 0
    for _ in range(len(instructions)):
        code, if_true, if_false, k = instructions[at]
        at += 1
        assert 0 <= if_true <= 255 and 0 <= if_false <= 255 and 0 <= k < 2**32
        if code == d.RETURN:
            return k
        if code in (d.LOAD_BYTE, d.LOAD_WORD):
            begin, size = k - d.IP_HEADER, 4 if code == d.LOAD_WORD else 1
            assert begin >= 0 and begin + size <= len(header), "it would be dropped"
            accumulator = int.from_bytes(header[begin : begin + size], "big")
        elif code == d.AND:
            accumulator &= k
        elif code == d.JUMP:
            at += k
        else:
            assert code == d.JUMP_EQUAL
            at += if_true if accumulator == k else if_false
    raise AssertionError("no end")


@given(NETWORKS, st.lists(ADDRESSES, max_size=20), st.randoms())
def test_the_senders_in_the_networks_and_no_others_are_accepted(networks, others, dice):
    instructions = d.program(networks)
    assert len(instructions) <= 4096
    within = [n[dice.randrange(min(n.num_addresses, 2**62))] for n in networks]
    last = [n[-1] for n in networks]
    for sender in (*within, *last, *others):
        expected = any(sender in n for n in networks if n.version == sender.version)
        assert (run(instructions, packet(sender)) == d.INSIDE) == expected


@given(NETWORKS, st.integers(2, 20))
def test_few_networks_contain_what_many_do(networks, most):
    found = widened(networks, most)
    assert len(found) <= most
    for one in networks:
        assert any(one.subnet_of(n) for n in found if n.version == one.version)


@given(st.lists(IPV4 | IPV6, max_size=10))
def test_few_enough_are_not_widened(networks):
    found = widened(networks, 400)
    count = sum(n.num_addresses for n in found)
    parts = [ipaddress.collapse_addresses([n for n in networks if n.version == v]) for v in (4, 6)]
    assert count == sum(n.num_addresses for part in parts for n in part)


def test_ipv4_in_ipv6_is_ipv4():
    assert network("::ffff:10.1.2.3") == network("10.1.2.3")
    assert network("::ffff:10.1.0.0/112") == network("10.1.0.0/16")
    assert network("fd00::1").version == 6
    with pytest.raises(ValueError, match="does not appear to be"):
        network("host-1")


# -- the kernel ------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Iterator[Door]:
    """A door that nobody may pass but by a program that a test attaches."""
    door = Door(("127.0.0.1", 0), [])
    with door.listener:
        yield door
        door.close()


def only(door: Door, *networks: Network) -> None:
    """Let in the given ones, and of this machine's own addresses no other."""
    door._attach(d.program(networks))


def connect(door: Door, sender: str) -> socket.socket:
    """A connection from that address of this machine."""
    return socket.create_connection(door.listener.getsockname()[:2], LIMIT, (sender, 0))


def is_let_in(door: Door, sender: str) -> bool:
    with connect(door, sender):
        found, _, _ = select.select([door.listener, door._outside], [], [], LIMIT)
        if found == [door.listener]:
            door.listener.accept()[0].close()
            return True
        assert door.kept_away() == [sender]
        return False


def test_others_are_kept_away_and_a_new_program_lets_them_in(made):
    only(made, network("127.0.0.5"))
    for _ in range(20):
        assert is_let_in(made, "127.0.0.5") and not is_let_in(made, "127.0.0.6")
    only(made, network("127.0.0.6"))
    for _ in range(20):
        assert is_let_in(made, "127.0.0.6") and not is_let_in(made, "127.0.0.5")
    made.let_in(None)
    assert is_let_in(made, "127.0.0.5") and is_let_in(made, "127.0.0.6")


def test_what_is_kept_away_is_closed(made):
    only(made)
    with connect(made, "127.0.0.6") as stranger:
        select.select([made._outside], [], [], LIMIT)
        assert made.kept_away() == ["127.0.0.6"] and made.kept_away() == []
        assert stranger.recv(1) == b""


def test_so_many_others_that_they_are_not_answered_keep_nobody_out(made):
    only(made, network("127.0.0.5"))
    others = [socket.socket() for _ in range(4 * d.KEPT_AWAY)]
    for other in others:
        other.setblocking(False)
        other.bind(("127.0.0.6", 0))
        other.connect_ex(made.listener.getsockname())
    with connect(made, "127.0.0.5"):
        made.listener.settimeout(LIMIT)
        made.listener.accept()[0].close()
    while made.kept_away():
        pass
    for other in others:
        other.close()


def test_a_connection_stays_when_its_peer_is_let_in_no_more(made):
    only(made, network("127.0.0.5"))
    with connect(made, "127.0.0.5") as member:
        accepted, _ = made.listener.accept()
        only(made, network("127.0.0.6"))
        with accepted:
            for sends, receives in ((member, accepted), (accepted, member)):
                sends.settimeout(LIMIT)
                receives.settimeout(LIMIT)
                sends.sendall(b"still here")
                assert receives.recv(100) == b"still here"


def test_ipv6():
    try:
        door = Door(("::1", 0), [])
    except OSError:
        pytest.skip("no IPv6 here")
    try:
        assert is_let_in(door, "::1")
        only(door, network("fd00::/8"), network("127.0.0.0/8"))
        assert not is_let_in(door, "::1")
        only(door, network("fd00::/8"), network("::/64"))
        assert is_let_in(door, "::1")
    finally:
        door.listener.close()
        door.close()


def test_the_port_is_not_shared_with_another_door_or_socket(made):
    address = made.listener.getsockname()
    with pytest.raises(OSError, match="in use"):
        Door(address, [])
    with pytest.raises(OSError, match="in use"), socket.create_server(address):
        pass
    # where this user shares it on purpose, the others get nothing
    only(made, network("127.0.0.5"))
    with socket.create_server(address, reuse_port=True) as third:
        for _ in range(20):
            assert is_let_in(made, "127.0.0.5") and not is_let_in(made, "127.0.0.6")
        assert select.select([third], [], [], 0)[0] == []


def test_as_many_as_there_may_be(made):
    many = [ipaddress.ip_network((2**127 + 2**40 * n + 1, 128)) for n in range(d.MOST - 2)]
    assert widened([*many, *d.LOOPBACK], d.MOST) == sorted([*d.LOOPBACK, *many], key=_order)
    made.let_in(many)
    # far more than fit
    made.let_in([network(f"10.{n >> 8}.{n & 255}.1") for n in range(20_000)])
    assert is_let_in(made, "127.0.0.5")


def _order(one: Network):
    return one.version, one


def test_without_privileges():
    if os.geteuid() != 0:
        pytest.skip("the tests above are without")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            door = Door(("127.0.0.1", 0), [])
            only(door, network("127.0.0.5"))
            status = int(not is_let_in(door, "127.0.0.5") or is_let_in(door, "127.0.0.6"))
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
