"""Pages that lose their content: where the process survives it, where it must not, and what is
told. The errors are real: the kernel marks the page, and the touch is a SIGBUS."""

from __future__ import annotations

import errno
import signal
import threading
from pathlib import Path

import pytest

from taskd.cython_api import poison
from tests.libtaskd.losing import LOST, MEMORY, PAGE

pytestmark = pytest.mark.usefixtures("poisonable")

PRELUDE, HERE = MEMORY, Path(__file__).parent


@pytest.mark.parametrize("flags", [(), ("-X", "faulthandler")], ids=["plain", "faulthandler"])
def test_registered_range(page, ranks, flags):
    bell = page.bell()
    out = ranks.ran(
        """
    memory, at = pages(4)
    damage.register(damage.TENSORS, [(at, 4 * PAGE)])
    poison.page(at + PAGE + 100)
    assert (damage.damaged(), damage.damages(), damage.spoiled()) == (0, [], 0), "nobody has touched it"
    assert memory[PAGE + 5] == 0
    assert bytes(memory) == b"\\7" * PAGE + bytes(PAGE) + b"\\7" * (2 * PAGE), "that page and no other"
    memory[PAGE + 5] = 9
    assert memory[PAGE + 5] == 9 and memory[PAGE + 6] == 0
    [found] = damage.damages()
    say(at, found["tid"], found["mono_ns"])
    assert (damage.damaged(), damage.spoiled()) == (1, 2)
    damage.accept(1000)
    assert damage.spoiled() == 0
    poison.page(at)
    assert memory[0] == 0
    assert (damage.damaged(), damage.spoiled()) == (2, 2), "nothing that was still to come was accepted"
    damage.accept(2)
    damage.accept(1)
    assert damage.spoiled() == 0
    """,
        *flags,
    )
    at, tid, mono_ns = map(int, out.split())
    first, second = page.damages(0)
    assert first == {
        "addr": at + PAGE,
        "bytes": PAGE,
        "base": at,
        "size": 4 * PAGE,
        "born": 0,
        "mono_ns": mono_ns,
        "kind": "registered",
        "tid": tid,
        "number": 1,
    }
    assert (second["addr"], second["number"]) == (at, 2)
    assert (page.read(0).damaged, page.records(0)) == (2, [])
    assert page.wait_bell(bell) is True and page.bell() == bell + 2


@pytest.mark.parametrize("half", ["first", "last"])
def test_a_page_that_is_only_half_ours_kills(page, ranks, half):
    out = ranks.bus_error(f"""
    memory, at = pages(3)
    damage.register(damage.TENSORS, [(at + PAGE // 2, 2 * PAGE)])
    poison.page(at + PAGE)
    assert memory[PAGE] == 0, "the one in the middle is whole"
    touched = at + PAGE - 8 if {half == "first"} else at + 2 * PAGE + 8
    poison.page(touched)
    say(touched)
    ctypes.c_char.from_address(touched).value
    """)
    [record] = page.records(0)
    assert (record["kind"], record["sig"], record["addr"]) == ("signal", signal.SIGBUS, int(out))
    assert record["code"] in LOST and record["ip"] != 0
    assert page.read(0).damaged == 1


def test_neighbours_are_one_range(ranks):
    """Many, unordered, overlapping and empty ones."""
    ranks.ran("""
    import random
    memory, at = pages(8)
    spread = [(0x1000_0000_0000 + i * 10 * PAGE, PAGE) for i in range(20_000)]
    parts = [(at, PAGE + 10), (at + PAGE + 10, 100), (at + PAGE + 50, PAGE), (at + 2 * PAGE, PAGE), (at + 7, 0)]
    ranges = spread + parts + [(at + 5 * PAGE, PAGE)]
    random.Random(0).shuffle(ranges)
    damage.register(damage.TENSORS, ranges)
    for page in (0, 1, 2, 5):
        poison.page(at + page * PAGE)
        assert memory[page * PAGE] == 0
    assert {(d["base"], d["size"]) for d in damage.damages()} == {(at, 3 * PAGE), (at + 5 * PAGE, PAGE)}
    for wrong in ((damage.TENSORS, [(2**64 - 1, 2)]), (3, [])):
        try:
            damage.register(*wrong)
        except (OSError, ValueError):
            continue
        raise AssertionError(wrong)
    poison.page(at)
    assert memory[0] == 0, "the list before a refused one stays"
    """)


def test_a_list_that_was_replaced_does_not_count(page, ranks):
    ranks.bus_error("""
    memory, at = pages(4)
    damage.register(damage.TENSORS, [(at, 4 * PAGE)])
    damage.register(damage.TENSORS, [(at, PAGE)])
    poison.page(at + 2 * PAGE)
    memory[2 * PAGE]
    """)
    assert page.records(0)[-1]["sig"] == signal.SIGBUS


def test_registering_while_others_fault(ranks):
    # Short lists and several threads: a list is replaced many times while a handler reads it.
    ranks.ran("""
    sys.setswitchinterval(1e-5)
    memory, at = pages(64)
    far = [(0x1000_0000_0000 + i * 2 * PAGE, PAGE) for i in range(60)]
    damage.register(damage.TENSORS, [(at, 64 * PAGE)])
    done = threading.Event()
    def register():
        while not done.is_set():
            damage.register(damage.TENSORS, [*far, (at, 64 * PAGE)])
    threads = [threading.Thread(target=register) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(5000):
        poison.page(at + i % 64 * PAGE)
        libc.memchr(at + i % 64 * PAGE, 1, PAGE)
    done.set()
    for thread in threads:
        thread.join()
    assert damage.damaged() == 5000
    """)


def test_without_preloading(page, ranks):
    ranks.bus_error(
        f"""
    slot.attach({page.path!r}, 0)
    assert not library.preloaded()
    memory, at = pages(2)
    damage.register(damage.TENSORS, [(at, PAGE)])
    poison.page(at)
    assert memory[0] == 0 and damage.spoiled() == 2
    poison.page(at + PAGE)
    memory[PAGE]
    """,
        slot=None,
        LD_PRELOAD="",
    )
    assert (len(page.damages(0)), len(page.records(0))) == (1, 1)


def test_a_process_without_a_slot_dies(page, ranks):
    ranks.bus_error("""
    memory, at = pages(1)
    damage.register(damage.TENSORS, [(at, PAGE)])
    slot.detach()
    poison.page(at)
    memory[0]
    """)
    assert (page.damages(0), page.records(0)) == ([], [])


def test_a_new_claim_has_no_damages(page, ranks):
    lose = """
    memory, at = pages(1)
    damage.register(damage.TENSORS, [(at, PAGE)])
    poison.page(at)
    assert memory[0] == 0
    """
    again = """
    slot.detach()
    slot.attach(os.environ["TASKD_PAGE"], 0)
    assert (damage.damaged(), damage.damages(), damage.spoiled()) == (0, [], 0)
    """
    ranks.ran(lose + again)
    assert (page.read(0).damaged, page.damages(0)) == (0, [])
    ranks.ran(lose)
    assert page.read(0).damaged == 1
    page.reset(0)
    assert (page.read(0).damaged, page.damages(0)) == (0, [])


def test_the_newest_are_listed(page, ranks):
    ranks.ran("""
    memory, at = pages(100)
    damage.register(damage.TENSORS, [(at, 100 * PAGE)])
    for i in range(100):
        poison.page(at + i * PAGE)
        assert memory[i * PAGE] == 0
    assert [d["number"] for d in damage.damages()] == list(range(37, 101))
    assert [(d["addr"] - at) // PAGE for d in damage.damages()] == list(range(36, 100))
    """)
    assert page.read(0).damaged == 100
    assert [d["number"] for d in page.damages(0)] == [97, 98, 99, 100]


def test_threads_that_meet_on_one_page(page, ranks, compiled):
    """One page, one damage, and what the first thread wrote into the clean page stays."""
    meet = ranks.command([compiled(HERE / "meet.c"), page.path], slot=None)
    out, err = meet.communicate(timeout=120)
    assert (meet.returncode, out.strip()) == (0, "10000"), err
    assert page.read(0).damaged == 10000


def test_a_page_that_does_not_get_better(page, ranks):
    """Three times in a row can be chance. The fourth within a second is not, and the process is not
    kept in a loop."""
    out = ranks.bus_error("""
    memory, at = pages(2)
    damage.register(damage.TENSORS, [(at, 2 * PAGE)])
    say(at)
    for i in range(3):
        poison.page(at)
        assert memory[0] == 0
        poison.page(at + PAGE)
        assert memory[PAGE] == 0, "another one in between: no row"
    for i in range(1_000_000):
        poison.page(at)
        memory[0]
    """)
    [record] = page.records(0)
    assert (record["addr"], page.read(0).damaged >= 9) == (int(out), True)
    assert record["code"] in LOST


def test_file_that_several_map(page, ranks, tmp_path):
    name = f"{page.path}-shared"
    out = ranks.bus_error(f"""
    fd = os.open({name!r}, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink({name!r})
    os.truncate(fd, 4 * PAGE)
    memory, at = pages(4, fd)
    other, _ = pages(4, fd)
    damage.register(damage.SHARED, [(at, 4 * PAGE)])
    poison.page(at + PAGE)
    assert bytes(other) == bytes(memory) == os.pread(fd, 4 * PAGE, 0) == b"\\7" * (4 * PAGE), "only this mapping had lost it"
    memory[PAGE + 1] = 5
    assert other[PAGE + 1] == 5, "the file's page, not a private copy"
    assert damage.damages()[0]["kind"] == "registered" and damage.spoiled() == 2
    os.truncate(fd, 2 * PAGE)
    say(at + 3 * PAGE)
    memory[3 * PAGE]  # the same signal and code, but there is nothing that could be given back
    """)
    [record] = page.records(0)
    assert (record["code"], record["addr"]) == (2, int(out))
    assert page.read(0).damaged == 1


def test_locked_memory(ranks):
    """It refuses to be emptied and is replaced by a new mapping."""
    ranks.ran("""
    memory, at = pages(3)
    damage.register(damage.TENSORS, [(at, 3 * PAGE)])
    poison.page(at + PAGE)
    MLOCK_ONFAULT = 1
    if libc.mlock2(ctypes.c_void_p(at + PAGE), ctypes.c_size_t(PAGE), MLOCK_ONFAULT) == 0:
        assert libc.madvise(at + PAGE, PAGE, mmap.MADV_DONTNEED) != 0
    assert memory[PAGE] == 0
    memory[PAGE] = 3
    assert bytes(memory) == b"\\7" * PAGE + b"\\3" + bytes(PAGE - 1) + b"\\7" * PAGE
    """)


def test_poison_what_is_not_there(page):
    with pytest.raises(OSError) as error:
        poison.page(PAGE)
    assert error.value.errno in (errno.ENOMEM, errno.EINVAL, errno.ENOENT)
    assert hex(PAGE) in str(error.value)
    with pytest.raises(ValueError):
        poison.next_allocation(3)
    poison.next_allocation(None)
    assert poison.poisoned() == 0


def test_the_bell_wakes_a_waiter(page, ranks, line):
    heard = []
    seen = page.bell()
    thread = threading.Thread(target=lambda: heard.append(page.wait_bell(seen)))
    thread.start()
    rank = ranks.start("""
    memory, at = pages(1)
    damage.register(damage.TENSORS, [(at, PAGE)])
    poison.page(at)
    say(memory[0])
    input()
    """)
    assert line(rank) == "0"
    thread.join(60)
    assert heard == [True]
    assert page.read(0).damaged == 1


def test_a_forked_child_dies_of_it(page, ranks):
    ranks.ran(
        """
    memory, at = pages(1)
    damage.register(damage.TENSORS, [(at, PAGE)])
    poison.page(at)
    pid = os.fork()
    if pid == 0:
        assert damage.damaged() == 0
        memory[0]
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -7
    assert memory[0] == 0
    """,
        "-W",
        "ignore",
    )
    assert (page.read(0).damaged, page.records(0)) == (1, [])
