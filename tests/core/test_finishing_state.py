"""Which ranks have exited before the end, as one report after the other comes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from taskd.core.election.election import Election
from taskd.core.job.state import JobState
from taskd.core.settings import Settings

RANKS = 4


def plainly(job: JobState) -> list[int]:
    """The rule, with a look at all ranks."""
    states = job.ranks.values()
    ends = [s.finished for s in states if s.finished is not None]
    if not job.protected or not ends:
        return []
    if any(s.finished is None and not s.quit for s in states):
        return []
    quitters = [(r, s) for r, s in job.ranks.items() if s.quit and not s.left_loop]
    return [r for r, s in quitters if s.quit_at < max(ends)]


changes = st.tuples(
    st.integers(0, RANKS - 1),
    st.sampled_from(["finishes", "quits", "leaves its loop", "is taken back"]),
    st.integers(3, 5),
)


@given(st.booleans(), st.lists(changes, max_size=30))
def test_the_answer_is_that_of_a_look_at_all_ranks(protected, happened):
    job = JobState(Settings(2, RANKS // 2), Election())
    job.protected = protected
    for number, what, step in happened:
        state = job.ranks[number]
        state.finished = step if what == "finishes" else None
        gone = what in ("quits", "leaves its loop")
        state.quit, state.quit_at = ("exited", step) if gone else ("", -1)
        state.left_loop = what == "leaves its loop"
        expected = plainly(job)
        assert job.quit_before_the_end() == expected
