"""What a bus error says was lost, and which kinds of it a process must not survive."""

from __future__ import annotations

import signal

import pytest

from tests.libtaskd.losing import MEMORY, PAGE

pytestmark = pytest.mark.usefixtures("poisonable")


PRELUDE = (
    MEMORY
    + """
    def tell(code, address, shift):
        info = struct.pack("iiiiQh", 7, 0, code, 0, address, shift).ljust(128, b"\\0")
        SYS_rt_tgsigqueueinfo = {"x86_64": 297, "aarch64": 240}[os.uname().machine]
        assert libc.syscall(SYS_rt_tgsigqueueinfo, os.getpid(), threading.get_native_id(), 7, info) == 0

    HUGE = 1 << 21
    memory, at = pages(3 * HUGE // PAGE)
    begin = (at + HUGE - 1) // HUGE * HUGE
"""
)


@pytest.mark.parametrize(
    ("code", "shift", "bytes_lost"),
    [
        (4, 12, 1 << 12),
        (5, 12, 1 << 12),
        (4, 21, 1 << 21),
        (4, 0, 1 << 12),
        (4, 63, 1 << 12),
        (4, -1, 1 << 12),
    ],
)
def test_size_of_what_was_lost(page, ranks, code, shift, bytes_lost):
    if PAGE != 4096:
        pytest.skip(f"written for pages of 4096 bytes, here they have {PAGE}")
    ranks.ran(
        f"""
    damage.register(damage.TENSORS, [(begin, HUGE)])
    poison.page(begin)
    tell({code}, begin + 24, {shift})
    assert memory[begin - at : begin - at + HUGE] == bytes({bytes_lost}) + b"\\7" * (HUGE - {bytes_lost})
    assert damage.damages()[0]["bytes"] == {bytes_lost}
    tell({code}, begin + 24, {shift})
    assert damage.damaged() == 1, "nothing was lost there"
    damage.register(damage.TENSORS, [(begin, HUGE - 1)])
    poison.page(begin)
    tell({code}, begin + 24, {shift})
    say("alive")
    """,
        status=-signal.SIGBUS if bytes_lost > 4096 else 0,
    )
    assert len(page.records(0)) == (1 if bytes_lost > 4096 else 0)


@pytest.mark.parametrize("code", [1, 3, 0, -1, -6])
def test_other_kinds_of_bus_error_kill(page, ranks, code):
    ranks.bus_error(f"""
    damage.register(damage.TENSORS, [(at, 3 * HUGE)])
    poison.page(begin)
    tell({code}, begin, 12)
    """)
    assert (page.read(0).damaged, page.records(0)[0]["code"]) == (0, code)


def test_machine_code_is_no_number(page, ranks):
    out = ranks.bus_error("""
    PROT = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    memory = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=PROT)
    at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    damage.register(damage.TENSORS, [(at, PAGE)])
    poison.page(at)
    say(at)
    ctypes.CFUNCTYPE(None)(at)()
    """)
    [record] = page.records(0)
    assert record["addr"] == record["ip"] == int(out)
    assert page.read(0).damaged == 0
