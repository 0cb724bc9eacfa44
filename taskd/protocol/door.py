"""A listening socket that only senders of some networks reach.

Two sockets listen at the same address: one for those who may come, one for all others. The kernel
asks a program of classic BPF, which sees the sender's address, which of the two a new connection is
for (SO_REUSEPORT, SO_ATTACH_REUSEPORT_CBPF). That takes no privileges, costs nothing once a
connection is made, and the program can be replaced at any time. A packet filter on one socket
(SO_ATTACH_FILTER) would do too, but newer kernels ask for CAP_NET_ADMIN.

A socket that is left alone gets everybody, whatever the program says: the one for others has to be
the last to go.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from taskd.core.networks import LOOPBACK, Network, widened
from taskd.protocol import addresses
from taskd.protocol.addresses import Address

# networks in a program, which stays below BPF_MAXINSNS (4096) with nine instructions for each; then
# how many where the kernel's memory for filters (net.core.optmem_max, once 20 kB) does not hold it
MOST, *FEWER = 400, 100, 25
BACKLOG = 4096  # all ranks of a job connect at once
KEPT_AWAY = 16  # connections of others that wait to be closed; more are not answered

# linux/filter.h: operations, and where the IP header is
LOAD_BYTE, LOAD_WORD, AND, JUMP, JUMP_EQUAL, RETURN = 0x30, 0x20, 0x54, 0x05, 0x15, 0x06
IP_HEADER = 2**32 - 0x100000
V4_SENDER, V6_SENDER = IP_HEADER + 12, IP_HEADER + 8
# which of the sockets: they are numbered in the order in which they began to listen
OUTSIDE, INSIDE = 0, 1
SO_ATTACH_REUSEPORT_CBPF = 51  # asm/socket.h


class Instruction(NamedTuple):
    code: int
    if_true: int  # instructions to skip
    if_false: int
    k: int


EVERYBODY = [Instruction(RETURN, 0, 0, INSIDE)]


def program(networks: Sequence[Network]) -> list[Instruction]:
    """Lets senders of `networks`, at most MOST, in."""
    v4 = [i for n in networks if n.version == 4 for i in _compare(n, V4_SENDER)]
    v6 = [i for n in networks if n.version == 6 for i in _compare(n, V6_SENDER)]
    v4.append(Instruction(RETURN, 0, 0, OUTSIDE))
    v6.append(Instruction(RETURN, 0, 0, OUTSIDE))
    return [
        Instruction(LOAD_BYTE, 0, 0, IP_HEADER),
        Instruction(AND, 0, 0, 0xF0),
        Instruction(JUMP_EQUAL, 0, 1, 0x60),
        Instruction(JUMP, 0, 0, len(v4)),  # conditional jumps reach 255 instructions
        *v4,
        *v6,
    ]


def _compare(network: Network, at: int) -> list[Instruction]:
    """In if the sender's address, which is at `at`, is in the network; else go on."""
    words = struct.unpack(f"!{network.max_prefixlen // 32}I", network.network_address.packed)
    masks = struct.unpack(f"!{network.max_prefixlen // 32}I", network.netmask.packed)
    found: list[Instruction] = []
    for number, (word, mask) in enumerate(zip(words, masks, strict=True)):
        if mask:
            found.append(Instruction(LOAD_WORD, 0, 0, at + 4 * number))
            if mask != 2**32 - 1:
                found.append(Instruction(AND, 0, 0, mask))
            found.append(Instruction(JUMP_EQUAL, 0, 0, word))
    found.append(Instruction(RETURN, 0, 0, INSIDE))
    return [
        i._replace(if_false=len(found) - at - 1) if i.code == JUMP_EQUAL else i
        for at, i in enumerate(found)
    ]


class Door:
    """`listener` is the socket inside, which somebody else may be given. Not thread-safe."""

    def __init__(self, address: Address, networks: Iterable[Network] | None) -> None:
        """Listen at `address`, port 0 for any. `networks`: who is let in, besides this machine's
        loopback; None: everybody. Raises OSError; EADDRINUSE: the port is taken, by a door too."""
        self._outside = _bound(address, shared=False)
        try:
            # from now on, and for processes of this user alone, another socket may be bound there
            self._outside.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            self._outside.listen(KEPT_AWAY)
            self._outside.setblocking(False)
            self.let_in(networks)
            here = address[0], self._outside.getsockname()[1]
            self.listener = _bound(here, shared=True)
        except BaseException:
            self._outside.close()
            raise
        # Python closes its sockets when it ends, while a thread of torch's still serves the one
        # inside: a descriptor that it knows nothing of keeps the one outside until the process ends
        self._kept = os.dup(self._outside.fileno())
        self._inside = self.listener.fileno()
        self._was = os.fstat(self._inside)
        self.listener.listen(BACKLOG)

    def let_in(self, networks: Iterable[Network] | None) -> None:
        """Let others in from now on; connections that are made stay. Raises OSError."""
        if networks is None:
            self._attach(EVERYBODY)
            return
        given = [*LOOPBACK, *networks]
        for most in (MOST, *FEWER):
            try:
                self._attach(program(widened(given, most)))
                return
            except OSError:
                if most == FEWER[-1]:
                    raise

    def _attach(self, instructions: Sequence[Instruction]) -> None:
        packed = b"".join(struct.pack("=HBBI", *i) for i in instructions)
        content = ctypes.create_string_buffer(packed, len(packed))
        description = struct.pack("@HP", len(instructions), ctypes.addressof(content))
        self._outside.setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, description)

    def kept_away(self) -> list[str]:
        """Close the connections of others that have come since the last call; their addresses."""
        found = []
        with contextlib.suppress(OSError):  # BlockingIOError: no more
            for _ in range(KEPT_AWAY + 1):
                connection, (host, *_) = self._outside.accept()
                connection.close()
                found.append(str(host))
        return found

    def is_over(self) -> bool:
        """Whether the socket inside has been closed, by whoever had its descriptor."""
        try:
            return not os.path.samestat(os.fstat(self._inside), self._was)
        except OSError:
            return True

    def close(self) -> None:
        """Close the socket for others, once the door is over: the one inside alone would let in
        everybody."""
        self._outside.close()
        os.close(self._kept)


def _bound(address: Address, shared: bool) -> socket.socket:
    """A socket as socket.create_server makes it, before it listens."""
    family = addresses.family(address[0])
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shared:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        made.bind(address)
    except BaseException:
        made.close()
        raise
    return made
