"""The records of a rank: which slot is given up for a new one, and what a process finds that looks
again."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.core.job.snapshots import FINAL, PAUSED, PROMOTED, PROVISIONAL
from taskd.records import room, sealed
from taskd.records.slots import SlotFile
from taskd.records.store import Entries as Store
from taskd.records.store import forget
from taskd.records.store import left_behind as left_behind_by


@pytest.fixture(autouse=True)
def key(tmp_path):
    sealed.write_key(tmp_path, b"k" * 32, "job")


class Entries(Store):
    """Of rank 5, with fields alone."""

    def __init__(self, directory, local_rank: int) -> None:
        super().__init__(directory, local_rank, 5)

    def write(self, step: int, kind: int, fields: bytes) -> None:
        super().write(step, kind, self.seal.close(step, fields))

    def read(self, step: int):
        found = super().read(step)
        return found and (found[0], bytes(self.seal.open(found[1], step)[0]))


def left_behind(directory, local_rank: int):
    return left_behind_by(directory, local_rank, 5)


def kinds(entries: Entries) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for step, kind in sorted(k for k in entries.whole().records if k is not None):
        found.setdefault(step, []).append(kind)
    return found


def test_a_held_rank_keeps_the_record_of_the_step_before(tmp_path):
    """Others may still be in that step, and be taken back to its start."""
    entries = Entries(tmp_path, 0)
    entries.write(6, FINAL, b"six")
    entries.write(7, PROVISIONAL, b"seven, perhaps")
    entries.write(7, PAUSED, b"seven, paused")
    assert kinds(entries) == {6: [FINAL], 7: [PAUSED]}
    assert entries.read(7) == (PAUSED, b"seven, paused")
    # paused once more before the same step, then it is begun: what is known of step 6 stays as long
    entries.write(7, PAUSED, b"seven, paused again")
    assert entries.read(7) == (PAUSED, b"seven, paused again")
    entries.write(7, FINAL, b"seven, with its batch")
    assert kinds(entries) == {6: [FINAL], 7: [FINAL]}
    assert entries.read(7) == (FINAL, b"seven, with its batch")
    assert entries.read(6) == (FINAL, b"six")


def test_what_a_held_rank_leaves_is_final(tmp_path):
    entries = Entries(tmp_path, 0)
    entries.write(7, PROVISIONAL, b"seven, perhaps")
    left = left_behind(tmp_path, 0)
    assert left is not None and (left.final, left.provisional) == (frozenset(), {7})
    entries.write(7, PAUSED, b"seven, paused")
    left = left_behind(tmp_path, 0)
    assert left is not None and (left.final, left.provisional) == ({7}, frozenset())


def test_the_provisional_record_may_become_the_final_one(tmp_path):
    entries = Entries(tmp_path, 0)
    entries.write(6, FINAL, b"six")
    entries.write(7, PROVISIONAL, b"seven")
    entries.promote(7)
    assert entries.read(7) == (FINAL, b"seven") and entries.read(6) is not None
    assert entries.latest() == (7, FINAL) and entries.has(7, PROMOTED)
    left = left_behind(tmp_path, 0)
    assert left is not None and (left.final, left.promoted) == ({6, 7}, {7})
    entries.write(7, FINAL, b"seven, repeated")
    assert kinds(entries) == {6: [FINAL], 7: [FINAL]}


def test_a_promoted_record_stays_one_on_another_node(tmp_path):
    entries = Entries(tmp_path, 0)
    entries.write(7, PROVISIONAL, b"seven")
    entries.promote(7)
    copied = entries.record(7)
    assert copied is not None and copied[0] == PROMOTED
    Store(tmp_path, 1, 5).write(7, copied[0], [copied[1]])
    left = left_behind_by(tmp_path, 1, 5)
    assert left is not None and left.promoted == {7}


def test_records_that_were_put_in_place_are_seen_when_looked_at_anew(tmp_path):
    prepared = Entries(tmp_path, 0)
    prepared.write(3, FINAL, b"three")
    reader = Entries(tmp_path, 0)
    forget(tmp_path, 0)
    Entries(tmp_path, 0).write(9, PAUSED, b"nine")
    reader.open()
    assert reader.latest() == (9, PAUSED) and reader.all() == [9]
    forget(tmp_path, 0)
    forget(tmp_path, 0)
    reader.open()
    assert reader.latest() is None and reader.steps() == (frozenset(), frozenset())


def test_a_step_that_is_repeated_keeps_its_record_until_the_next_is_whole(tmp_path):
    """A rank may be killed while it writes: its step and the one before are needed then."""
    entries = Entries(tmp_path, 0)
    for step, kind in ((5, FINAL), (6, FINAL), (7, PROVISIONAL), (7, FINAL), (7, FINAL)):
        entries.write(step, kind, b"as it was")
    assert kinds(entries) == {6: [FINAL], 7: [FINAL]}
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            Store.write(entries, 7, FINAL, entries.seal.close(7, b"half"), whole=killed)
        left = left_behind(tmp_path, 0)
        assert left is not None and left.final == {6, 7}
        assert Entries(tmp_path, 0).read(7) == (FINAL, b"as it was")


def killed():
    raise KeyboardInterrupt


def test_a_copy_that_was_not_whole_is_no_record(tmp_path):
    entries = Entries(tmp_path, 0)
    entries.write(6, FINAL, b"six")
    Store.write(entries, 7, PROVISIONAL, entries.seal.close(7, b"seven"), whole=lambda: False)
    assert entries.read(7) is None and not entries.has(7, PROVISIONAL)
    assert left_behind(tmp_path, 0).final == {6}


def test_what_another_hand_has_changed_does_not_exist(tmp_path):
    """One bad record costs that record: the one before is there."""
    entries = Entries(tmp_path, 0)
    entries.write(6, FINAL, b"six")
    forger = Entries(tmp_path, 0)
    forger.seal = sealed.Seal(b"x" * 32, "job", 5)
    forger.write(7, FINAL, b"seven")
    forger.seal = sealed.Seal(b"k" * 32, "job", 4)
    forger.write(8, FINAL, b"of another rank")
    found = Entries(tmp_path, 0)
    assert found.latest() == (6, FINAL) and found.steps() == ({6}, frozenset())
    assert found.read(7) is None and found.read(8) is None
    assert left_behind(tmp_path, 0).step == 6


TOGGLE = """
import sys
from pathlib import Path
from taskd.records.slots import SlotFile
file = SlotFile(Path(sys.argv[1]), 1)
print("ready", flush=True)
while True:
    for kind in (1, 4):
        file.set_kind(0, kind)
"""


def test_whoever_reads_while_a_record_becomes_final_sees_one_kind_or_the_other(tmp_path):
    """Never a header between the two: the agent would take it for no record."""
    path = tmp_path / "slots"
    file = SlotFile(path, 1)
    file.reserve(0, 64)
    file.commit(0, 5, 0, 0, 1)
    with subprocess.Popen(
        [sys.executable, "-c", TOGGLE, str(path)], stdout=subprocess.PIPE
    ) as writer:
        try:
            assert writer.stdout.readline() == b"ready\n"
            kinds = {file.read_slot(0).kind for _ in range(300_000)}
        finally:
            writer.kill()
    assert kinds == {1, 4}


def test_a_step_is_told_once_by_all_processes_of_a_rank(tmp_path):
    first = Entries(tmp_path, 0)
    first.write(0, FINAL, b"zero")
    assert [first.announce(0), first.announce(1)] == [True, True]
    # a survivor is taken back to step 1, and commits it again
    first.forget_after(1)
    assert [first.announce(1), first.announce(2)] == [False, True]
    first.write(3, PROVISIONAL, b"three" * 10_000)  # a larger file
    # its replacement repeats steps 1 and 2, of which that process had told the script
    second = Entries(tmp_path, 0)
    second.forget_after(1)
    assert [second.announce(s) for s in (1, 2, 3)] == [False, False, True]
    second.open()
    assert [second.announce(s) for s in (3, 4)] == [False, True]
    # another rank of the node
    assert Entries(tmp_path, 1).announce(0)


def test_records_from_another_node_say_what_was_told(tmp_path):
    """An agent has written them here: the word beside them stayed behind."""
    here = Entries(tmp_path, 0)
    here.write(6, FINAL, b"six")
    here.write(7, PROVISIONAL, b"seven")
    taken_over = Entries(tmp_path, 0)
    taken_over.forget_after(6)
    assert [taken_over.announce(s) for s in (6, 7)] == [False, True]


LARGE = b"x" * (2 << 20)


def taken(directory: Path) -> int:
    """Bytes of the files of all records."""
    return sum(file.stat().st_blocks * 512 for file in directory.glob("entries-0.*"))


def test_large_records_take_two_slots_and_give_back_what_they_no_longer_need(tmp_path):
    entries = Entries(tmp_path, 0)
    for step in range(3):
        entries.write(step, FINAL, b"small")
    small = taken(tmp_path)
    for step in range(3, 8):
        entries.write(step, PROVISIONAL, LARGE)
        entries.write(step, FINAL, LARGE)
        assert kinds(entries)[step] == [FINAL] and len(kinds(entries)) == 2
        assert taken(tmp_path) <= 2 * len(LARGE) + 2 * small
    reader = Entries(tmp_path, 0)
    assert reader.all() == [6, 7] and reader.read(6) == (FINAL, LARGE)
    for step in range(8, 11):
        entries.write(step, FINAL, b"small again")
    assert taken(tmp_path) <= 2 * small and reader.all() == [8, 9, 10]
    entries.write(11, FINAL, LARGE)
    assert reader.read(11) == (FINAL, LARGE), "more than the reader had mapped"


@pytest.mark.parametrize("refused", range(4))
def test_a_record_that_does_not_fit_costs_that_record(tmp_path, monkeypatch, refused):
    """Each allocation is refused once."""
    entries = Entries(tmp_path, 0)
    entries.write(0, FINAL, b"zero")
    reserve, asked = room.reserve, 0

    def full(*args):
        nonlocal asked
        asked += 1
        if asked - 1 == refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        reserve(*args)

    monkeypatch.setattr(room, "reserve", full)
    for step in range(1, 6):
        before = entries.all()
        try:
            entries.write(step, FINAL, b"x" * (100_000 * step))
        except OSError:
            assert set(before) - {min(before)} <= set(entries.all()) or len(before) < 3
            assert step not in entries.all()
            entries.write(step, FINAL, b"it fits now")
        assert entries.all()[-1] == step and Entries(tmp_path, 0).all() == entries.all()
    assert asked > refused
