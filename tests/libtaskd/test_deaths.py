"""How the death of a slot's process is told, and who may claim the slot then."""

from __future__ import annotations

import errno

import pytest

from taskd.cython_api import slot

WHO = "from taskd.cython_api import library, slot; print(slot.number(), library.preloaded(), flush=True);"


SLEEPER = WHO + "import time; time.sleep(600)"


def test_kill_is_told_without_a_record(page, ranks, line):
    rank = ranks.start(SLEEPER)
    line(rank)
    assert not page.wait_death(0, 0)
    rank.kill()
    assert page.wait_death(0, 60_000)
    assert page.wait_death(0, 60_000), "and told again to whoever asks later"
    assert page.records(0) == []


def test_nobody_there(page):
    with pytest.raises(OSError) as error:
        page.wait_death(0, 0)
    assert error.value.errno == errno.ENOLCK


def test_a_live_slot_is_busy(page, ranks, line):
    rank = ranks.start(SLEEPER)
    line(rank)
    status, out, _ = ranks.run(
        f"from taskd.cython_api import slot\ntry: slot.attach({page.path!r}, 0)\nexcept OSError as"
        " e: print(e.errno)",
        slot=None,
    )
    assert (status, int(out)) == (0, errno.EBUSY)
    assert ranks.run(WHO)[:2] == (0, "None True\n")
    with pytest.raises(OSError) as error:
        page.reset(0)
    assert error.value.errno == errno.EBUSY
    assert page.read(0).pid == rank.pid


def test_replacement_after_a_kill(page, ranks, line):
    first = ranks.start(
        "from taskd.cython_api import slot; slot.progress(6, slot.UPDATING);" + SLEEPER
    )
    line(first)
    page.interrupt(4, 0)
    first.kill()
    assert page.wait_death(0, 60_000)
    page.reset(0)
    assert page.read(0)[:6] == (None, 0, 0, False, 0, slot.SETUP)
    assert page.read(0).interruption == 4, (
        "a newcomer must not miss the interruption that it was born into"
    )
    with pytest.raises(OSError):
        page.wait_death(0, 0)
    second = ranks.start(SLEEPER, TASKD_INCARNATION="1")
    line(second)
    view = page.read(0)
    assert (view.pid, view.incarnation) == (second.pid, 1)
    second.kill()
    assert page.wait_death(0, 60_000)


def test_claim_of_a_dead_slot_without_reset(page, ranks, line):
    first = ranks.start(SLEEPER)
    line(first)
    first.kill()
    assert page.wait_death(0, 60_000)
    second = ranks.start(SLEEPER)
    assert line(second) == "0 True"
    second.kill()
    assert page.wait_death(0, 60_000)


def test_killed_in_the_middle_of_everything(page, ranks, line):
    """Ranks that publish as fast as they can, killed; what is left is whole, or said not to be, and
    mends."""
    for _ in range(10):
        rank = ranks.start("""
            from taskd.cython_api import slot
            print("up", flush=True)
            step = 0
            while True:
                step += 1
                slot.progress(step, step % 6)
                slot.started(step)
        """)
        line(rank)
        for _ in range(100):
            view = page.read(0)
            assert not view.consistent or view.phase == view.step % 6
        rank.kill()
        assert page.wait_death(0, 60_000)
        view = page.read(0)
        assert not view.consistent or view.phase == view.step % 6
        page.reset(0)
        assert page.read(0).consistent


@pytest.mark.parametrize("slot", [0, None])
def test_what_nobody_reads_is_dropped_in_a_rank_alone(ranks, slot):
    """Its output goes into a pipe whose reader has ended; other pipes are the program's affair."""
    code = """
import os
read, write = os.pipe()
os.dup2(write, 1)
os.close(write)
other, far = os.pipe()
os.close(other)
os.close(read)
for fd in (1, 1, far):
    try:
        os.write(2, b"%d " % os.write(fd, b"some text"))
    except BrokenPipeError:
        os.write(2, b"broken ")
os.write(2, os.readlink("/proc/self/fd/1").encode()[:5])
"""
    status, _, errors = ranks.run(code, slot=slot)
    dropped = "9 9 broken /dev/" if slot == 0 else "broken broken broken pipe:"
    assert (status, errors) == (0, dropped)
