"""A rank keeps what all ranks may go back to, whenever it is killed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.job.snapshots import (
    FEW,
    FINAL,
    PASS_END,
    PAUSED,
    PROVISIONAL,
    SLOTS,
    Snapshots,
    drifting,
)
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


DO = st.sampled_from(["same", "changed", "paused", "pass end", "repeat"])


@given(st.lists(DO, max_size=40), st.sampled_from([FEW, SLOTS]))
def test_what_the_ranks_may_go_back_to_is_kept_whenever_one_is_killed(story, most):
    """Others may still be in the step before, until a step is committed, or all have gone back."""
    kept, step = after_steps(1, committed=False), 1
    back = {1}  # the steps to which the ranks may go back
    for what in story:
        if what == "repeat":
            kept.go_back(step)
            back = {step}
            written = (FINAL,)
        else:
            step, back = step + 1, {step, step + 1}
            kinds = {"same": (), "changed": (FINAL,), "paused": (PAUSED, FINAL)}
            written = (PROVISIONAL, *kinds.get(what, (PASS_END, FINAL)))
        for kind in written:
            index = kept.begin(step, most)
            if kind == PROVISIONAL or (kind == FINAL and what == "repeat"):
                sure = min(back)
            else:
                sure = step - 1
            assert sure in kept.final, "killed while it writes"
            kept.write(step, kind, index, most)
            if kind == PASS_END:
                back = {step}
        if what == "same":
            kept.promote(step)
        assert {step, *back} <= kept.final
        assert sum(r is not None for r in kept.records) <= most
        assert len({r[0] for r in kept.records if r}) == sum(r is not None for r in kept.records)
