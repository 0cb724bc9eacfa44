"""The records of a rank: which slot is given up for a new one, and what a process finds that looks again."""

from __future__ import annotations

from taskd.vault import FINAL, PROVISIONAL, STANDING, Entries, forget, left_behind


def kinds(entries: Entries) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for step, kind in sorted(k for k in entries._kept if k is not None):
        found.setdefault(step, []).append(kind)
    return found


def test_a_held_rank_keeps_the_record_of_the_step_before(tmp_path):
    """Others may still be in that step, and be taken back to its start."""
    entries = Entries(tmp_path, 0)
    entries.write(6, FINAL, b"six")
    entries.write(7, PROVISIONAL, b"seven, perhaps")
    entries.write(7, STANDING, b"seven, held")
    assert kinds(entries) == {6: [FINAL], 7: [PROVISIONAL, STANDING]}
    assert entries.read(7) == (STANDING, b"seven, held")
    # held once more before the same step, then it is begun: what is known of step 6 stays as long
    entries.write(7, STANDING, b"seven, held again")
    assert entries.read(7) == (STANDING, b"seven, held again")
    entries.write(7, FINAL, b"seven, with its batch")
    assert kinds(entries) == {6: [FINAL], 7: [PROVISIONAL, FINAL]}
    assert entries.read(7) == (FINAL, b"seven, with its batch") and entries.read(6) == (FINAL, b"six")


def test_what_a_held_rank_leaves_is_final(tmp_path):
    entries = Entries(tmp_path, 0)
    entries.write(7, PROVISIONAL, b"seven, perhaps")
    left = left_behind(tmp_path, 0)
    assert left is not None and (left.final, left.provisional) == (frozenset(), {7})
    entries.write(7, STANDING, b"seven, held")
    left = left_behind(tmp_path, 0)
    assert left is not None and (left.final, left.provisional) == ({7}, {7})


def test_the_provisional_record_may_still_become_the_final_one(tmp_path):
    entries = Entries(tmp_path, 0)
    entries.write(6, FINAL, b"six")
    entries.write(7, PROVISIONAL, b"seven")
    entries.write(7, STANDING, b"seven")
    entries.promote(7)
    assert entries.read(7) == (FINAL, b"seven") and entries.read(6) is not None


def test_records_that_were_put_in_place_are_seen_when_looked_at_anew(tmp_path):
    prepared = Entries(tmp_path, 0)
    prepared.write(3, FINAL, b"three")
    reader = Entries(tmp_path, 0)
    forget(tmp_path, 0)
    Entries(tmp_path, 0).write(9, STANDING, b"nine")
    assert reader.latest() == (3, FINAL), "a file that is open stays what it was"
    reader.open()
    assert reader.latest() == (9, STANDING) and reader.all() == [9]
    forget(tmp_path, 0)
    forget(tmp_path, 0)
    reader.open()
    assert reader.latest() is None and reader.steps() == (frozenset(), frozenset())
