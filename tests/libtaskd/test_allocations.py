"""Which allocations are followed, how they are stamped, and that an error in one is survived. The
tensors are torch's."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from taskd.cython_api import library_path

pytest.importorskip("torch")

HERE = Path(__file__).parent

PRELUDE = """
    import ctypes, mmap, subprocess, threading
    import torch
    from taskd.cython_api import allocations, damage, poison, slot

    PAGE = mmap.PAGESIZE
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.realloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.realloc.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    libc.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]

    def tensor(pages=64):
        return torch.empty(pages * PAGE, dtype=torch.uint8)

    def in_gloos_thread(work):
        failed = []
        def run():
            libc.prctl(15, b"pt_gloo_runloop")  # PR_SET_NAME
            try:
                work()
            except BaseException as error:
                failed.append(error)
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]

    def say(*words):
        print(*words, flush=True)
"""


def test_what_is_followed(ranks):
    ranks.ran("""
    one, small = tensor(), torch.empty(PAGE, dtype=torch.uint8)
    at = one.data_ptr()
    assert allocations.allocation_of(at) == allocations.allocation_of(at + 64 * PAGE - 1) == (at, 64 * PAGE, 0)
    assert allocations.allocation_of(at - 1) is None and allocations.allocation_of(at + 64 * PAGE) is None
    assert allocations.allocation_of(small.data_ptr()) is None, "less than two pages"
    block = libc.malloc(64 * PAGE)
    assert allocations.allocation_of(block) is None, "whose it is nobody knows"
    cell = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.addressof(cell), 64, 64 * PAGE) == 0
    assert allocations.allocation_of(cell.value) is None, "not asked for by torch's allocator"
    libc.free(block)
    libc.free(cell)
    del one
    assert allocations.allocation_of(at) is None
    slot.detach()
    late = tensor()
    assert allocations.allocation_of(late.data_ptr()) is None
    """)


def test_nothing_is_followed_without_preloading(page, ranks):
    code = f"slot.attach({page.path!r}, 0)\n    assert allocations.allocation_of(tensor().data_ptr()) is None"
    ranks.ran("\n    " + code, slot=None, LD_PRELOAD="")


def test_stamps(ranks):
    ranks.ran("""
    def born(one):
        return allocations.allocation_of(one.data_ptr())[2]
    before = tensor()
    allocations.attempt(41)
    one = tensor()
    allocations.attempt(2**63)
    two = tensor()
    allocations.scratch(True)
    three, elsewhere = tensor(), []
    thread = threading.Thread(target=lambda: elsewhere.append(tensor()))
    thread.start()
    thread.join()
    allocations.scratch(False)
    four = tensor()
    seen = [born(one) for one in (before, one, two, three, elsewhere[0], four)]
    assert seen == [0, 41, 2**63, allocations.SCRATCH, 2**63, 2**63], seen
    """)


def test_gloos_own_buffers(ranks):
    ranks.ran("""
    def work():
        allocations.attempt(3)
        at = libc.malloc(2 * PAGE)
        assert allocations.allocation_of(at) == (at, 2 * PAGE, 3)
        small = libc.malloc(2 * PAGE - 1)
        assert allocations.allocation_of(small) is None
        assert not libc.realloc(at, 2**62)
        assert allocations.allocation_of(at) == (at, 2 * PAGE, 3), "refused: it is as it was"
        moved = libc.realloc(at, 1000 * PAGE)
        assert allocations.allocation_of(at) is None and allocations.allocation_of(moved) is None
        libc.free(moved)
        at = libc.malloc(2 * PAGE)
        libc.realloc(at, 0)
        assert allocations.allocation_of(at) is None
        at = libc.malloc(2 * PAGE)
        libc.free(at)
        assert allocations.allocation_of(at) is None
        libc.free(None)
        libc.free(small)
    in_gloos_thread(work)
    """)


def test_a_full_table(ranks):
    """What has no room is not followed, nothing else is different, and room that becomes free is
    used."""
    ranks.ran("""
    def work():
        blocks = [libc.malloc(2 * PAGE) for _ in range(16384)]
        assert all(allocations.allocation_of(at) is not None for at in blocks[::1000]), "it has filled up too soon to be of use"
        while allocations.allocation_of(blocks[-1]) is not None:
            blocks.append(libc.malloc(2 * PAGE))
            assert len(blocks) <= 65537
        outside = blocks.pop()
        ctypes.memset(outside, 1, 2 * PAGE)
        outside = libc.realloc(outside, 4 * PAGE)
        libc.free(outside)
        assert all(allocations.allocation_of(at) == (at, 2 * PAGE, 0) for at in blocks[::1000])
        for at in blocks:
            libc.free(at)
        assert all(allocations.allocation_of(at) is None for at in blocks[::1000])
        for _ in range(100):
            at = libc.malloc(2 * PAGE)
            assert allocations.allocation_of(at) is not None
    in_gloos_thread(work)
    """)


# ---- errors in them --------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("poisonable")
def test_a_tensor_loses_a_page(page, ranks):
    out = ranks.ran("""
    allocations.attempt(12)
    one = torch.ones(1 << 20)
    poison.page(one.data_ptr() + 5 * PAGE)
    assert one.sum() == (1 << 20) - PAGE / 4
    assert damage.spoiled() == 2
    say(one.data_ptr())
    """)
    [found] = page.damages(0)
    assert found["kind"] == "allocated"
    assert found["born"] == 12
    assert found["base"] == int(out)
    assert found["size"] == 4 << 20
    assert 0 < found["addr"] - int(out) < 4 << 20


@pytest.mark.usefixtures("poisonable")
def test_the_page_that_a_tensor_shares_with_others_kills(page, ranks):
    out = ranks.bus_error("""
    one = tensor(1000)  # so large that it has a mapping of its own, and the page behind its last whole one is its own too
    last = one.data_ptr() + 1000 * PAGE - 8
    assert last // PAGE * PAGE + PAGE > one.data_ptr() + 1000 * PAGE
    poison.page(last)
    say(last)
    ctypes.c_char.from_address(last).value
    """)
    [record] = page.records(0)
    assert (record["sig"], record["addr"], page.damages(0)) == (signal.SIGBUS, int(out), [])


@pytest.mark.usefixtures("poisonable")
def test_a_tensor_that_is_gone_kills(page, ranks):
    ranks.bus_error("""
    block = []
    def work():
        block.append(libc.malloc(1000 * PAGE))
    libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD and
    libc.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD: what is freed stays mapped
    in_gloos_thread(work)
    at = block[0] + 500 * PAGE
    poison.page(at)
    assert ctypes.c_char.from_address(at).value == b"\\0"
    libc.free(block[0])
    poison.page(at)
    ctypes.c_char.from_address(at).value
    """)
    assert (len(page.damages(0)), len(page.records(0))) == (1, 1)


@pytest.mark.usefixtures("poisonable")
def test_the_next_tensor(page, ranks):
    ranks.ran("""
    poison.next_allocation(poison.TENSOR)
    small = torch.empty(PAGE, dtype=torch.uint8)
    in_gloos_thread(lambda: libc.malloc(64 * PAGE))
    assert poison.poisoned() == 0
    one, two = tensor(), tensor()
    assert poison.poisoned() == 1
    assert damage.damaged() == 0
    one.fill_(3)
    two.fill_(3)
    [found] = damage.damages()
    assert found["base"] == one.data_ptr() and found["addr"] < found["base"] + PAGE
    assert int(one.sum()) == 3 * one.numel(), "lost when handed out: nothing was in it yet"
    poison.next_allocation(poison.TENSOR)
    poison.next_allocation(0)
    tensor().fill_(1)
    assert (poison.poisoned(), damage.damaged()) == (1, 1)
    """)
    assert page.read(0).damaged == 1


@pytest.mark.usefixtures("poisonable")
def test_gloos_next_buffer(page, ranks):
    ranks.ran("""
    def work():
        at = libc.malloc(64 * PAGE)
        ctypes.memset(at, 1, 64 * PAGE)
        libc.free(at)
    poison.next_allocation(poison.GLOO)
    keep = tensor()
    work()
    assert poison.poisoned() == 0
    in_gloos_thread(work)
    assert (poison.poisoned(), damage.damaged()) == (1, 1)
    """)
    assert page.damages(0)[0]["kind"] == "allocated"


@pytest.mark.usefixtures("poisonable")
def test_a_collective_over_a_lost_page(page, ranks, line):
    """Both of gloo's ways: the buffer that a peer's data goes to, and the tensor that goes to the
    peer."""
    code = """
    import sys
    import torch.distributed as dist
    rank, port = int(sys.argv[1]), sys.argv[2]
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    numbers = torch.ones(1 << 20)
    dist.all_reduce(numbers)
    assert damage.spoiled() == 0
    if rank == 0:
        poison.next_allocation(poison.GLOO)
    dist.all_reduce(numbers)
    assert damage.spoiled() == (2 if rank == 0 else 0), damage.damages()
    damage.accept(damage.damaged())
    numbers.fill_(1)
    if rank == 0:
        poison.page(numbers.data_ptr() + 10 * PAGE)
    dist.broadcast(numbers, 0)
    assert damage.spoiled() == (2 if rank == 0 else 0), damage.damages()
    assert int(numbers.sum()) == (1 << 20) - PAGE // 4
    say("done")
    dist.destroy_process_group()
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    argv = [sys.executable, "-c", ranks.program(code)]
    both = [ranks.command([*argv, str(rank), str(port)], slot=rank) for rank in (0, 1)]
    for process in both:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.strip()) == (0, "done"), err
    assert [page.read(slot).damaged for slot in (0, 1)] == [2, 0]


# ---- threads, forks, other allocators --------------------------------------------------------------------------------


def test_storm(page, ranks, compiled):
    storm = ranks.command([compiled(HERE / "storm.c"), page.path], slot=None)
    out, err = storm.communicate(timeout=120)
    assert (storm.returncode, out.strip()) == (0, "calm"), err
    assert page.records(0) == []


# An allocator that knows its own blocks by a mark in front of them and ends the process over any
# other.
@pytest.mark.parametrize("order", ["behind", "in front"])
def test_another_allocator(page, ranks, compiled, order):
    """Every block goes back to the one that made it, from the first that the dynamic linker asks
    for to the last at exit."""
    other = compiled(HERE / "allocator.c", "-shared", "-fPIC", "-fno-builtin")
    both = [library_path(), other] if order == "behind" else [other, library_path()]
    code = f"""
    one = tensor()
    assert (allocations.allocation_of(one.data_ptr()) is not None) is {order == "behind"}
    assert subprocess.run(["true"]).returncode == 0
    say("done")
    """
    assert ranks.ran(code, LD_PRELOAD=":".join(both)).strip() == "done"
    assert page.records(0) == []
