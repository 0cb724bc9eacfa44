"""A script that keeps failing in its set-up in the same way ends."""

from __future__ import annotations

import traceback

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.adaptor.set_up import FATAL, LIMIT, LONG, Failure, SetUp, read


def raised(line: int, text: str = "no such file", name: str = "ValueError") -> str:
    frame = f'  File "train.py", line {line}, in <module>\n    load()\n    ^^^^^^\n'
    return f"Traceback (most recent call last):\n{frame}{name}: {text}\nmore: text\n"


def ends(*starts, seconds=5.0):
    """Return after which start the job ends, and the failure shown; None if it continues."""
    set_up = SetUp()
    for number, failures in enumerate(starts, 1):
        if (first := set_up.failed(failures, seconds)) is not None:
            return number, first
    return None


def test_the_same_exit_code_of_the_same_rank():
    assert ends(*[[Failure(1, 5)]] * 5) == (3, Failure(1, 5))


def test_where_the_first_failure_stops_all_its_rank_is_chance():
    set_up = SetUp(first_only=True)
    assert [set_up.failed([Failure(rank, 7)], 5.0) for rank in (2, 0, 1)] == [
        None,
        None,
        Failure(2, 7),
    ]


def test_the_first_traceback_is_shown():
    set_up, texts = SetUp(when="within a day"), [raised(7, f"port {n} is in use") for n in range(3)]
    set_up.starting()
    first, second, third = (set_up.in_vain([Failure(0, 1, text)]) for text in texts)
    assert first == second == ""
    assert "rank 0 failed within a day, and 3 starts in a row ended alike" in third
    assert "exit status 1, ValueError in train.py, line 7" in third
    assert third.endswith(texts[0].rstrip())


def test_other_codes_ranks_and_places_are_other_ways():
    assert (
        ends([Failure(0, 5)], [Failure(0, 6)], [Failure(0, 5)], [Failure(1, 5)], [Failure(0, 5)])
        is None
    )
    assert ends(*[[Failure(0, 1, raised(n))] for n in range(6)]) is None
    assert ends(*[[Failure(0, 1, raised(1, name=n))] for n in ("A", "B", "A", "B")]) is None


def test_the_same_exception_on_any_rank():
    """The launcher kills the others once it sees the first, so which ranks raise is chance."""
    assert (
        ends(
            [Failure(0, 1, raised(7)), Failure(2, 1, raised(7))],
            [Failure(1, 1, raised(7))],
            [Failure(3, 1, raised(7))],
        )[0]
        == 3
    )


def test_what_comes_from_outside_is_no_defect():
    assert ends(*[[Failure(0, -9)]] * 6) is None
    assert ends(*[[Failure(0, -15), Failure(1, -9)]] * 6) is None
    assert ends(*[[Failure(0, -11), Failure(1, -15)]] * 6) == (3, Failure(0, -11))


def test_a_start_that_came_far_begins_the_count_anew():
    set_up = SetUp()
    assert [set_up.failed([Failure(0, 1)], s) for s in (5.0, 5.0, LONG, 5.0, 5.0)] == [None] * 5
    set_up.passed()
    assert [set_up.failed([Failure(0, 1)], 5.0) for _ in range(3)] == [None, None, Failure(0, 1)]


def test_a_traceback_of_pythons_own():
    def deep():
        raise KeyError("a: b\nc: d")

    try:
        try:
            deep()
        except KeyError as error:
            raise RuntimeError("outer") from error
    except RuntimeError:
        frames, name = read(traceback.format_exc())
    assert name == "RuntimeError" and len(frames) == 3 and all(f[0] == __file__ for f in frames)
    assert read("no traceback: at all") == ((), "")


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.builds(Failure, st.integers(0, 2), st.sampled_from([1, 2, -6, -9, -15])), max_size=3
        ),
        max_size=8,
    )
)
def test_it_ends_exactly_where_something_has_happened_three_times_in_a_row(starts):
    own = [
        {(f.rank, f.status) for f in failures if f.status > 0 or f.status in FATAL}
        for failures in starts
    ]
    wanted = next(
        (n for n in range(LIMIT, len(own) + 1) if set.intersection(*own[n - LIMIT : n])), None
    )
    found = ends(*starts)
    assert (None if found is None else found[0]) == wanted


@settings(deadline=None)
@given(st.text())
def test_any_text_is_read(text):
    frames, name = read(text)
    assert isinstance(frames, tuple) and isinstance(name, str)


def test_the_same_reason_three_times_without_a_death():
    tried = SetUp()
    reason = "rank {} could not join generation {}: RuntimeError: Numpy is not available"
    assert not tried.stuck(reason.format(1, 1))
    assert not tried.stuck(reason.format(3, 2))
    assert tried.stuck(reason.format(0, 3)) == reason.format(1, 1)
    tried.passed()
    assert not tried.stuck(reason.format(0, 4))
    assert not tried.stuck("ranks [1] did not call protect() within 600 s")
    assert not tried.stuck(reason.format(0, 5))
    tried.failed([], 1.0)
    assert not tried.stuck(reason.format(0, 6))
