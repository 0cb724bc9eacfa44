"""Which rank is hung: single cases with their reasons, and invariants for any answers."""

from __future__ import annotations

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from taskd.core.hang.progress_probe import IDLE, Apart, Hung, Stuck, Waiting, judge
from taskd.messages.from_agent import ProgressReport


def at(rank, step=5, collectives=3, **changes):
    there = {
        "incarnation": 0,
        "call": 1,
        "answered": True,
        "waiting": False,
        "overdue": True,
        "seconds": 31.0,
        "cpu": 10.0,
        "where": "all_reduce",
    }
    return ProgressReport(rank=rank, step=step, collectives=collectives, **{**there, **changes})


def calls(*answers):
    return {a.rank: a for a in answers}


IN_LINE = calls(at(0), at(1), at(2))


@pytest.mark.parametrize(
    ("second", "hung"),
    [
        (IN_LINE, set()),
        (calls(at(0), at(1, collectives=2), at(2)), {1}),
        (calls(at(0), at(1, step=4, collectives=9), at(2)), {1}),
        (calls(at(0), at(1, answered=False), at(2)), {1}),
        (calls(at(0), at(1, answered=False, step=6), at(2)), {1}),
        (calls(at(0), at(1, collectives=2, overdue=False), at(2)), set()),
        (calls(at(0), at(1, answered=False, overdue=False), at(2)), set()),
        (calls(at(0, collectives=1), at(1, collectives=2), at(2)), {0}),
        (calls(at(0, collectives=2), at(1, collectives=2), at(2)), {0, 1}),
        (calls(at(0, collectives=2), at(1, answered=False), at(2)), {1}),
        (calls(*(at(r, answered=False) for r in range(3))), {0, 1, 2}),
        (calls(at(0, step=6, waiting=True), at(1), at(2, step=6, waiting=True)), {1}),
        (calls(at(0, step=5, waiting=True), at(1), at(2)), set()),
        (calls(*(at(r, waiting=True, overdue=False) for r in range(3))), set()),
        (calls(at(0, answered=False, waiting=True), at(1), at(2)), set()),
    ],
)
def test_who_is_hung(second, hung):
    verdict = judge(second, second, {}, 0.0)
    assert set(verdict.ranks if isinstance(verdict, Hung) else ()) == hung


def test_when_the_late_one_goes_on_between_the_calls_those_that_waited_for_it_are_not_hung():
    # the others waited for rank 2, which is in the next step; ranks 0 and 1 answered just before
    # they noticed
    first = calls(at(0), at(1), at(2, collectives=2))
    second = calls(at(0), at(1), at(2, step=6, collectives=0, overdue=False))
    assert isinstance(judge(first, second, {}, 0.0), Waiting)


@pytest.mark.parametrize(
    ("ran", "queued", "seconds", "hung"),
    [
        (0.0, 0.0, 31.0, True),  # it waits for something that will not come
        # the same, and its second thread had to wait for a CPU to answer
        (0.001, 0.01, 31.0, True),
        (0.2, 0.0, 31.0, True),  # it loops, undisturbed
        (0.02, 0.18, 31.0, False),  # it gets a tenth of a CPU, and may take ten times as long
        (0.02, 0.18, 99.0, False),
        (0.02, 0.18, 101.0, True),
        (0.0, 0.2, 299.0, False),
        (0.0, 0.2, 301.0, True),  # the others do not wait forever for a rank that gets no CPU
    ],
)
@pytest.mark.parametrize("answered", [True, False])
def test_on_a_busy_machine_a_rank_that_works_has_longer(ran, queued, seconds, hung, answered):
    late = {"collectives": 2, "answered": answered, "seconds": seconds, "limit": 10.0}
    first = calls(at(0), at(1, cpu=10.0, queued=50.0, **late), at(2))
    second = calls(at(0), at(1, cpu=10.0 + ran, queued=50.0 + queued, **late), at(2))
    verdict = judge(first, second, {}, 0.0, 0.2)
    assert isinstance(verdict, Hung if hung else Waiting), verdict


def test_one_that_is_stopped_was_not_kept_from_running_by_others():
    stopped = {"collectives": 2, "answered": False, "limit": 10.0, "stopped": True}
    first, second = (calls(at(0), at(1, queued=q, **stopped)) for q in (0.0, 0.2))
    assert isinstance(judge(first, second, {}, 0.0, 0.2), Hung)


def test_words():
    first = calls(at(0), at(1, collectives=2, seconds=32.0, where="forward"), at(2))
    assert judge(first, first, {}, 0.0) == Hung(
        {1: "no progress for 32.0 s in step 5 (forward) while 2 others wait for it"}
    )
    silent = calls(at(0), at(1, answered=False, where="state T"))
    assert judge(silent, silent, {}, 0.0) == Hung(
        {
            1: (
                "no progress for 31.0 s in step 5 (state T, it does not answer) while 1 other waits"
                " for it"
            )
        }
    )
    assert judge(IN_LINE, IN_LINE, IN_LINE, 30.0) == Stuck(
        "all ranks wait in the same collective for 31.0 s and none of them uses the CPU (step 5,"
        " all_reduce, collective 3)"
    )
    slow = calls(at(0), at(1, collectives=2, overdue=False, where="forward"))
    assert judge(slow, slow, {}, 0.0) == Waiting(
        "rank 1 is behind the others (step 5, forward, collective 2), within its limit"
    )


LEFT = at(1, collectives=0, left=True, overdue=False, where="left")
ENDED = at(1, collectives=0, waiting=True, overdue=False, where="interrupted")


@pytest.mark.parametrize(
    ("gone", "ended", "how"),
    [(LEFT, {}, "whose script has left the loop"), (ENDED, {1: 5}, "whose pass has ended")],
)
def test_ranks_that_wait_for_one_that_has_left_its_loop_wait_in_vain(gone, ended, how):
    now = calls(at(0), gone, at(2))
    text = f"ranks [0, 2] wait in step 5 for ranks [1], {how} before that step"
    assert judge(now, now, {}, 0.0, ended=ended) == Waiting(text)
    assert judge(now, now, now, 30.0, 0.2, 20.0, ended) == Apart(text)
    # its script may be about to end, by an exception
    soon = judge(now, now, now, 30.0, 0.2, 40.0, ended)
    assert soon == (Waiting(text) if gone.left else Apart(text))
    # those that work may do without it; one in an earlier step is still to come to the end
    busy = calls(at(0, cpu=11.0 + IDLE * 30), gone, at(2))
    assert judge(busy, busy, now, 30.0, 0.2, 20.0, ended) == Waiting(text)
    early = calls(at(0, step=4), gone, at(2, step=4))
    assert isinstance(judge(early, early, early, 30.0, ended=ended), Hung)
    # one without a collective may wait for its data
    alone = calls(at(0, collectives=0), gone, at(2, collectives=0))
    assert not isinstance(judge(alone, alone, alone, 30.0, ended=ended), Apart | Hung)
    # another one hangs before that
    hung = calls(at(0), gone, at(2, step=4))
    assert set(judge(hung, hung, now, 30.0, ended=ended).ranks) == {2}


def test_one_that_has_left_its_loop_and_works_may_come_back_until_its_limit():
    before = calls(at(0), LEFT)
    working = calls(at(0), structs.replace(LEFT, cpu=40.0))
    assert isinstance(judge(working, working, before, 30.0), Waiting)
    over = calls(at(0), structs.replace(LEFT, overdue=True))
    assert set(judge(over, over, before, 30.0).ranks) == {1}


@pytest.mark.parametrize("spent", [0.0, 0.9 * IDLE * 30, 1.1 * IDLE * 30, 30.0])
def test_all_in_one_place_are_stuck_unless_somebody_works(spent):
    now = calls(at(0), at(1, cpu=10.0 + spent), at(2))
    assert isinstance(judge(now, now, IN_LINE, 30.0), Stuck) == (spent < IDLE * 30)


@pytest.mark.parametrize(
    "before",
    [
        {},
        calls(at(0), at(1), at(2, collectives=2)),
        calls(at(0), at(1), at(2, incarnation=1)),
        calls(at(0), at(1), at(2, answered=False)),
        calls(at(0), at(1)),
    ],
)
def test_stuck_is_said_only_of_the_same_place_as_before(before):
    assert isinstance(judge(IN_LINE, IN_LINE, before, 30.0), Waiting)


# -- for any answers -------------------------------------------------------------------------------


@st.composite
def answers(draw, ranks):
    return {
        r: ProgressReport(
            rank=r,
            incarnation=draw(st.integers(0, 1)),
            call=1,
            answered=draw(st.booleans()),
            step=draw(st.integers(4, 6)),
            collectives=draw(st.integers(0, 2)),
            waiting=draw(st.sampled_from([False, False, True])),
            overdue=draw(st.sampled_from([True, True, False])),
            seconds=draw(st.sampled_from([0.5, 31.0, 31.5])),
            cpu=draw(st.sampled_from([10.0, 10.1, 40.0])),
            where=draw(st.sampled_from(["forward", "all_reduce"])),
            left=draw(st.sampled_from([False, False, False, True])),
        )
        for r in range(ranks)
    }


@st.composite
def some(draw):
    """Draw two calls, in which most ranks stay in place, and the answers of an earlier judgment."""
    ranks = draw(st.integers(1, 5))
    first, other, before = draw(answers(ranks)), draw(answers(ranks)), draw(answers(ranks))
    moved = draw(st.sets(st.integers(0, ranks - 1), max_size=2))
    known = draw(st.sampled_from(["nothing", "the same", "something else"]))
    second = {r: other[r] if r in moved else a for r, a in first.items()}
    return (
        first,
        second,
        {"nothing": {}, "the same": dict(second), "something else": before}[known],
        draw(st.sampled_from([0.2, 30.0])),
    )


def hung(verdict):
    return set(verdict.ranks) if isinstance(verdict, Hung) else set()


def outside(a):
    return a.waiting or (a.left and not a.overdue)


def place(a):
    return a.incarnation, a.answered, a.step, a.collectives


@given(some())
@settings(max_examples=300)
def test_nobody_is_hung_that_is_within_its_limit_or_waits_or_has_moved(case):
    first, second, before, since = case
    for rank in hung(judge(first, second, before, since)):
        assert second[rank].overdue
        assert not outside(second[rank])
        assert place(first[rank]) == place(second[rank])


@given(some())
@settings(max_examples=300)
def test_the_furthest_of_those_who_answer_is_never_hung(case):
    first, second, before, since = case
    inside = [a for a in second.values() if not outside(a)]
    furthest = max(((a.step, a.collectives) for a in inside if a.answered), default=None)
    for rank in hung(judge(first, second, before, since)):
        a = second[rank]
        behind_a_waiting_one = any(outside(o) and o.step > a.step for o in second.values())
        assert not a.answered or behind_a_waiting_one or (a.step, a.collectives) < furthest


@given(some())
@settings(max_examples=300)
def test_overdue_ranks_that_do_not_answer_are_hung_and_nobody_besides_them(case):
    first, second, before, since = case
    silent = {r for r, a in second.items() if not a.answered and not outside(a)}
    assume(silent)
    found = hung(judge(first, second, before, since))
    assert found <= silent
    # at both calls, in the same place
    assert {
        r
        for r in silent
        if second[r].overdue and place(first[r]) == place(second[r]) and not outside(first[r])
    } == found


@given(some(), st.data())
@settings(max_examples=150)
@example((IN_LINE, {0: at(0), 1: at(1, where="forward"), 2: at(2)}, IN_LINE, 30.0), None)
def test_the_order_of_the_ranks_changes_nothing(case, data):
    first, second, before, since = case
    order = data.draw(st.permutations(sorted(second))) if data is not None else [2, 1, 0]
    shuffled = [
        {r: answers[r] for r in order if r in answers} for answers in (first, second, before)
    ]
    assert judge(*shuffled, since) == judge(first, second, before, since)


@given(some(), st.data())
@settings(max_examples=150)
def test_the_numbers_of_the_ranks_change_nothing_but_the_names(case, data):
    first, second, before, since = case
    name = dict(enumerate(data.draw(st.permutations(sorted(second)))))
    renamed = [
        {name[r]: structs.replace(a, rank=name[r]) for r, a in answers.items()}
        for answers in (first, second, before)
    ]
    one, other = judge(first, second, before, since), judge(*renamed, since)
    assert type(one) is type(other)
    assert {name[r] for r in hung(one)} == hung(other)


@given(some())
@settings(max_examples=300)
def test_stuck_is_nobody_behind_nobody_within_its_limit_nobody_at_work_and_nothing_new(case):
    first, second, before, since = case
    if isinstance(judge(first, second, before, since), Stuck):
        inside = [a for a in second.values() if not (a.waiting or (a.left and not a.overdue))]
        assert inside and all(a.answered and a.overdue for a in inside)
        assert len({(a.step, a.collectives) for a in inside}) == 1
        assert set(before) >= set(second)
        for rank, a in second.items():
            assert place(before[rank]) == place(a)
            assert a.cpu - before[rank].cpu < IDLE * since


@pytest.mark.parametrize(
    ("early", "found"),
    [
        ({"seconds": 21.0}, Stuck),
        ({"seconds": 19.0}, Waiting),
        ({"seconds": 21.0, "patient": True}, Waiting),
        ({"seconds": 21.0, "cpu": 60.0}, Waiting),
    ],
)
def test_a_first_step_that_idles_while_others_are_overdue_is_stuck(early, found):
    """A replacement may take long for its first step, but in the same collective it idles."""
    now = calls(at(0), at(1, overdue=False, **early), at(2))
    before = calls(at(0), at(1), at(2))
    assert isinstance(judge(now, now, before, 30.0, idle=20.0), found)
    alone = calls(*(at(r, overdue=False, seconds=21.0) for r in range(3)))
    assert isinstance(judge(alone, alone, alone, 30.0, idle=20.0), Waiting)
