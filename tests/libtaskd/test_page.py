"""The page itself: making it, reading it, gates, interruptions, and the memory functions."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from taskd.core.job.durations import seconds
from taskd.cython_api import memory, slot
from taskd.cython_api.page import Page, View
from taskd.messages.values import KINDS


def test_a_fresh_page(page):
    assert stat.S_IMODE(os.stat(page.path).st_mode) == 0o600
    assert page.read(1) == View(None, 0, 0, False, 0, slot.SETUP, 0, None, 0, True, 0, 0, 0)
    assert page.records(1) == []


def test_create_refuses(page, tmp_path):
    for path, slots, kind, number in [
        (page.path, 1, OSError, errno.EEXIST),
        (tmp_path / "no" / "page", 1, OSError, errno.ENOENT),
        (tmp_path / "p", 0, ValueError, None),
        (tmp_path / "p", 4097, ValueError, None),
    ]:
        with pytest.raises(kind) as error:
            Page.create(path, slots)
        assert number is None or (error.value.errno == number and str(path) in str(error.value))
    assert not (tmp_path / "p").exists()


def test_full_file_system(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("mounting takes root")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8k", "taskd-test", str(tmp_path)], capture_output=True
    ).returncode:
        pytest.skip("may not mount")
    try:
        with pytest.raises(OSError) as error:
            Page.create(tmp_path / "page", 100)
        assert error.value.errno == errno.ENOSPC
        assert os.listdir(tmp_path) == [], "nothing half made is left"
        Page.create(tmp_path / "page", 2).close()
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_closed_page(page_path):
    page = Page.create(page_path, 1)
    page.close()
    page.close()
    assert not Path(page_path).exists()
    with pytest.raises(ValueError, match="closed"):
        page.read(0)


def test_close_while_somebody_waits(page_path, ranks, line):
    page = Page.create(page_path + "-2", 1)
    rank = ranks.start(
        "from taskd.cython_api import slot; print(slot.number(), flush=True); input()",
        page=page.path,
    )
    assert line(rank) == "0"
    seen = []

    def wait():
        try:
            page.wait_death(0)
        except ValueError as error:
            seen.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    page.close()
    thread.join(60)
    assert len(seen) == 1 and "closed" in seen[0]


def test_no_such_slot(page):
    for call in (
        page.reset,
        page.read,
        page.records,
        page.wait_death,
        lambda number: page.interrupt(1, number),
    ):
        for number in (2, -1):
            with pytest.raises(IndexError, match="slots 0 to 1"):
                call(number)


def test_pause_never_decreases(page):
    page.interrupt(5, 1)
    page.interrupt(3)
    assert [page.read(slot).interruption for slot in (0, 1)] == [3, 5]


def test_torn_progress_is_told_and_mended(page, ranks):
    with open(page.path, "r+b") as file:
        file.seek(256 + 64)  # the sequence number of slot 0
        file.write((7).to_bytes(4, "little"))
    assert page.read(0).consistent is False
    assert ranks.run("from taskd.cython_api import slot; slot.progress(2, slot.COMPUTING)")[0] == 0
    assert page.read(0)[4:6] == (2, slot.COMPUTING) and page.read(0).consistent


@pytest.fixture
def attached(page):
    slot.attach(page.path, 0)
    yield page
    slot.detach()


def test_progress(attached):
    slot.progress(2**63, slot.COMMITTED)
    view = attached.read(0)
    assert (view.step, view.phase) == (2**63, slot.COMMITTED)
    assert view.heartbeat_ns > 0


def test_usual_time_of_an_attempt(attached):
    """The first that ends counts for nothing, then a maximum that decays by a sixteenth of the
    difference."""

    def attempt(step, *phases, seconds=0.0):
        for phase in phases:
            slot.progress(step, phase)
            time.sleep(seconds)
        slot.progress(step, slot.COMMITTED)
        return attached.read(0).usual_ns

    assert attempt(0, slot.COMPUTING) == 0
    slow = attempt(1, slot.COMPUTING, slot.UPDATING, seconds=0.05)
    assert slow >= 2 * 50_000_000, "from the first phase of the attempt on"
    assert attempt(1) == slow, "committed twice is not an attempt"

    for phase in (slot.INTERRUPTED, slot.PAUSED, slot.SETUP, slot.DONE):
        slot.progress(2, slot.COMPUTING)
        time.sleep(0.15)
        slot.progress(2, phase)
        slot.progress(2, slot.COMMITTED)
        assert attached.read(0).usual_ns == slow, "interrupted"

    usual = slow
    # a machine that stands still for longer than the slow one took may raise it, not forever
    for _ in range(1000):
        before, usual = usual, attempt(3, slot.COMPUTING)
        assert usual >= before - before // 16 - 1
        if usual < before:
            break
    else:
        pytest.fail("it never decays")
    assert attempt(4, slot.FETCHING, slot.COMPUTING, seconds=usual / 1e9) > usual, (
        "waiting for data is part of it"
    )


def test_attempts_are_counted_by_how_long_they_took(attached):
    """Those that `usual_ns` is made of: not the first, and not an interrupted one."""

    def attempt(step, *phases, pause=0.0):
        slot.progress(step, slot.COMPUTING)
        time.sleep(pause)
        for phase in (*phases, slot.COMMITTED):
            slot.progress(step, phase)

    assert attached.times(0) == [0] * KINDS
    attempt(0)
    attempt(1, slot.INTERRUPTED)
    assert attached.times(0) == [0] * KINDS
    for step in range(2, 7):
        attempt(step, slot.UPDATING, pause=0.02)
    counts = {seconds(kind): n for kind, n in enumerate(attached.times(0)) if n}
    assert sum(counts.values()) == 5 and min(counts) > 0.02 / 1.07
    assert attached.read(0).usual_ns / 1e9 <= max(counts) * 1.07


def test_usual_time_belongs_to_one_claim(page):
    slot.attach(page.path, 0)
    for _ in range(2):
        slot.progress(1, slot.COMPUTING)
        slot.progress(1, slot.COMMITTED)
    assert page.read(0).usual_ns > 0
    slot.patience(10)
    slot.detach()
    slot.attach(page.path, 0)
    slot.progress(1, slot.COMPUTING)
    slot.progress(1, slot.COMMITTED)
    assert (page.read(0).usual_ns, page.read(0).until_ns) == (0, 0)
    slot.detach()


def test_patience(attached):
    slot.progress(3, slot.COMPUTING)
    begun = attached.read(0).heartbeat_ns
    slot.patience(600)
    view = attached.read(0)
    assert view.until_ns - view.heartbeat_ns == 600 * 10**9 and view.heartbeat_ns > begun
    assert (view.step, view.phase) == (3, slot.COMPUTING)
    slot.progress(4, slot.COMPUTING)
    assert attached.read(0).until_ns == view.until_ns
    slot.patience(2**64 - 1)
    assert attached.read(0).until_ns == 2**64 - 1
    slot.patience(0)
    assert attached.read(0).until_ns == 0


def test_an_interruption_is_no_progress(attached):
    slot.progress(3, slot.COMPUTING)
    begun = attached.read(0).heartbeat_ns
    slot.progress(3, slot.INTERRUPTED)
    assert (attached.read(0).heartbeat_ns, attached.read(0).phase) == (begun, slot.INTERRUPTED)
    slot.progress(3, slot.COMPUTING)
    assert attached.read(0).heartbeat_ns > begun


ALL = (1 << 64) - 1  # also what stands for no pause


def test_hold(page):
    page.pause(7)
    assert not slot.pauses(ALL), "not attached"
    slot.attach(page.path, 0)
    assert slot.pauses(7) and slot.pauses(8) and not slot.pauses(6)
    page.pause(0)
    page.reset(1)
    assert slot.pauses(0)
    page.pause(None)
    assert not slot.pauses(ALL)
    slot.progress(8, slot.PAUSED)
    assert slot.PHASES[page.read(0).phase] == "paused" and slot.PHASES[slot.FETCHING] == "fetching"
    slot.detach()


def test_bell_without_news(page_path):
    page = Page.create(page_path + "-2", 1)
    assert page.wait_bell(page.bell(), 1) is False
    assert page.wait_bell(page.bell() + 1) is True
    seen = []

    def wait():
        try:
            page.wait_bell(page.bell())
        except ValueError as error:
            seen.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    page.close()
    thread.join(60)
    assert len(seen) == 1 and "closed" in seen[0]
    with pytest.raises(ValueError, match="closed"):
        page.bell()


def test_pause_wakes_a_waiter_that_holds_no_interpreter_lock(attached):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(slot.wait_interruption(0)))
    thread.start()
    attached.interrupt(1, 0)
    thread.join(60)
    assert seen == [True]
    assert slot.interruption() == 1
    assert slot.wait_interruption(1, 1) is False
    assert slot.wait_interruption(0) is True


GATE = """
    from taskd.cython_api import slot
    print(slot.number(), flush=True)
    for word in iter(input, "end"):
        slot.started(slot.ALL_DONE if word == "done" else int(word))
        print(word, flush=True)
"""


def test_the_gate_opens_when_all_have_started(attached, ranks, line):
    other = ranks.start(GATE, slot=1)
    line(other)

    def tell(word):
        other.stdin.write(word + "\n")
        other.stdin.flush()

    slot.started(0)
    assert attached.read(0).started == 0
    with pytest.raises(OSError) as error:
        # step 0 is a step like any other: the other rank has not begun it
        slot.wait_started(0, 0, 1)
    assert error.value.errno == errno.ETIMEDOUT
    tell("0")
    assert slot.wait_started(0, 0) is True
    slot.started(1)
    tell("1")
    assert slot.wait_started(1, 0) is True
    line(other)
    line(other)

    slot.started(2)
    attached.interrupt(1, 0)
    assert slot.wait_started(2, 0) is False
    assert slot.wait_started(1, 1) is True

    seen = []
    thread = threading.Thread(target=lambda: seen.append(slot.wait_started(2, 1)))
    thread.start()
    attached.interrupt(2)
    thread.join(60)
    assert seen == [False]

    tell("done")
    line(other)
    assert attached.read(1).started == slot.ALL_DONE
    assert slot.wait_started(2, 2) is True
    tell("end")


def test_two_ranks_through_many_gates(page, ranks):
    code = """
        from taskd.cython_api import slot
        for step in range(3000):
            slot.progress(step, slot.COMPUTING)
            slot.started(step)
            assert slot.wait_started(step, 0, 60_000)
        slot.started(slot.ALL_DONE)
    """
    both = [ranks.start(code, slot=slot) for slot in (0, 1)]
    for rank in both:
        _, err = rank.communicate(timeout=120)
        assert rank.returncode == 0, err
    assert [page.read(slot).step for slot in (0, 1)] == [2999, 2999]


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_store_and_load():
    word = np.zeros(2, np.uint64)
    memory.store_release(word.ctypes.data, 2**64 - 1)
    assert memory.load_acquire(word.ctypes.data) == 2**64 - 1
    for address in (0, word.ctypes.data + 4):
        with pytest.raises(ValueError):
            memory.store_release(address, 1)
        with pytest.raises(ValueError):
            memory.load_acquire(address)


def test_copy_and_equal():
    a = np.random.default_rng(0).integers(0, 256, 100_003, np.uint8)
    b = np.zeros_like(a)
    assert not memory.equal(a.ctypes.data, b.ctypes.data, a.nbytes)
    memory.copy(b.ctypes.data, a.ctypes.data, a.nbytes)
    assert memory.equal(a.ctypes.data, b.ctypes.data, a.nbytes)
    assert memory.equal(a.ctypes.data, 0, 0)


@pytest.mark.parametrize(
    ("data", "seed", "expected"),
    [  # published values of XXH64
        (b"", 0, 0xEF46DB3751D8E999),
        (b"a", 0, 0xD24EC4F1A98C6E5B),
        (b"abc", 0, 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0, 0xFBCEA83C8A378BF1),
    ],
)
def test_checksum_is_xxh64(data, seed, expected):
    paused = np.frombuffer(data or b"\0", np.uint8)
    assert memory.checksum(paused.ctypes.data, len(data), seed) == expected


def test_checksum_sees_every_bit():
    data = np.zeros(77, np.uint8)
    seen = {memory.checksum(data.ctypes.data, data.nbytes)}
    for bit in range(data.nbytes * 8):
        data[bit // 8] ^= 1 << (bit % 8)
        seen.add(memory.checksum(data.ctypes.data, data.nbytes))
        data[bit // 8] ^= 1 << (bit % 8)
    seen.add(memory.checksum(data.ctypes.data, data.nbytes, 1))
    assert len(seen) == data.nbytes * 8 + 2
