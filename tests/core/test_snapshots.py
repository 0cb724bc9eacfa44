"""A rank keeps the records of its step and the previous one, whenever it is killed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.snapshots import FINAL, PAUSED, PROVISIONAL, Snapshots, drifting
from tests.core.histories import after_steps


def test_computing_and_committed():
    assert after_steps(5, committed=False).position(5, 5).final == {3, 4, 5}
    kept = after_steps(5, committed=True).position(6, 6)
    assert (kept.final, kept.provisional, kept.stripes) == ({4, 5}, {6}, {4, 5})


def test_the_first_steps():
    kept = after_steps(0, committed=False)
    assert (kept.final, kept.provisional, kept.striped_steps) == ({0}, frozenset(), {0})
    assert Snapshots().left() is None


def test_what_a_dead_rank_has_left_is_where_its_newest_record_is():
    left = after_steps(5, committed=True).left()
    assert left is not None and (left.step, left.clean) == (6, None)


def test_only_steps_that_can_be_gone_back_to_are_remembered_as_changed():
    assert drifting({1, 4, 5}, 6) == {5, 6}


DO = st.sampled_from(["same", "changed", "paused", "repeat", "killed while it writes"])


@given(st.lists(DO, max_size=40))
def test_the_present_step_and_the_one_before_can_be_gone_back_to(story):
    kept, step = after_steps(1, committed=False), 1
    for what in story:
        if what == "repeat":
            kept.go_back(step)
            kept.enter(step, same=False)
        elif what == "killed while it writes":
            before = kept.final
            kept.begin()
            assert {step, step - 1} <= kept.final, (before, kept)
        else:
            kept.write(step + 1, PROVISIONAL)
            assert kept.final | kept.provisional >= {step, step + 1}
            step += 1
            if what == "paused":
                kept.write(step, PAUSED)
            kept.enter(step, same=what == "same")
        assert kept.has(step, FINAL) and step - 1 in kept.final
        assert len({r[0] for r in kept.records if r}) == sum(r is not None for r in kept.records)
