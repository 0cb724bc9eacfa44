"""Pages that the kernel touches for a process, in a system call."""

from __future__ import annotations

import pytest

from tests.libtaskd.losing import MEMORY

pytestmark = pytest.mark.usefixtures("poisonable")

PRELUDE = (
    MEMORY
    + """
    if os.environ.get("FAMILY") == "tcp":
        server = socket.create_server(("127.0.0.1", 0))
        one = socket.create_connection(server.getsockname())
        other = server.accept()[0]
    else:
        one, other = socket.socketpair()
    memory, at = pages(4)
"""
)


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_receive_into_a_lost_page(page, ranks, family, monkeypatch):
    monkeypatch.setenv("FAMILY", family)
    ranks.ran("""
    damage.register(damage.TENSORS, [(at, 4 * PAGE)])
    other.sendall(b"x" * 4 * PAGE)
    poison.page(at)
    poison.page(at + 2 * PAGE)
    got = 0
    while got < 4 * PAGE:
        got += one.recv_into(memoryview(memory)[got:])
    assert bytes(memory) == b"x" * 4 * PAGE
    assert damage.damaged() == 2, damage.damages()
    """)
    assert page.read(0).damaged == 2


@pytest.mark.parametrize("family", ["tcp", "unix"])
def test_send_from_a_lost_page(page, ranks, family, monkeypatch):
    monkeypatch.setenv("FAMILY", family)
    ranks.ran("""
    damage.register(damage.TENSORS, [(at, 4 * PAGE)])
    poison.page(at + PAGE)
    poison.page(at + 3 * PAGE)
    sent, got = 0, b""
    while sent < 4 * PAGE:
        rest = memoryview(memory)[sent:]
        sent += os.writev(one.fileno(), [rest[:100], rest[100:]])
    while len(got) < 4 * PAGE:
        got += other.recv(4 * PAGE)
    assert got == (b"\\7" * PAGE + bytes(PAGE)) * 2
    assert damage.damaged() == 2, damage.damages()
    """)
    assert page.read(0).damaged == 2


def test_a_bad_buffer_is_an_error_and_no_death(page, ranks):
    ranks.ran("""
    def number(call, *args):
        return ctypes.get_errno() if call(*args) < 0 else 0
    libc.recv.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.writev.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    other.sendall(b"x" * 4 * PAGE)
    parts = (ctypes.c_uint64 * 2)(8, PAGE)
    assert number(libc.recv, one.fileno(), 8, PAGE, 0) == errno.EFAULT
    assert number(libc.recv, one.fileno(), 8, 2**62, 0) == errno.EFAULT
    assert number(libc.writev, one.fileno(), 8, 1) == errno.EFAULT
    assert number(libc.writev, one.fileno(), ctypes.addressof(parts), 1) == errno.EFAULT
    poison.page(at)
    assert number(libc.recv, one.fileno(), at, PAGE, 0) == errno.EFAULT, "lost, but in nothing that we know"
    damage.register(damage.TENSORS, [(at, 4 * PAGE)])
    slot.detach()
    assert number(libc.recv, one.fileno(), at, PAGE, 0) == errno.EFAULT
    """)
    assert page.records(0) == []
