"""What a set-up got is given again in the same order, channel by channel, or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from taskd.worker.set_up import results
from taskd.worker.set_up.results import LOOPS, NotTheSame, Result, Results

CALLS = st.builds(
    Result,
    st.sampled_from(["process group 0", "process group 1", "the stores"]),
    st.sampled_from(["allreduce", "broadcast", "store.get"]),
    st.sampled_from(["", "root 0"]),
    st.lists(st.tuples(st.just("float32"), st.tuples(st.integers(0, 3))), max_size=2),
    st.one_of(st.none(), st.lists(st.binary(max_size=4), max_size=2)),
    answer=st.one_of(st.none(), st.booleans(), st.integers(0, 9), st.binary(max_size=4)),
)


def kept(made: list[Result], missed: int = 0) -> Results:
    first, again = Results(missed=missed), Results()
    for result in made:
        first.add(result)
    again.load(first.encode())
    return again


def wanted(result: Result) -> Result:
    return Result(result.channel, result.call, result.detail, result.shapes)


@given(st.lists(CALLS, max_size=12), st.randoms())
def test_each_channel_gives_its_results_in_order(made, random):
    """Threads may take turns differently between channels, never within one."""
    again = kept(made)
    by_channel = {r.channel: [x for x in made if x.channel == r.channel] for r in made}
    order = [r.channel for r in made]
    random.shuffle(order)
    for channel in order:
        result = by_channel[channel].pop(0)
        assert again.next(wanted(result)) == result
    for channel in by_channel:
        with pytest.raises(NotTheSame, match="made no further call"):
            again.next(Result(channel, "allreduce", "", []))


@given(st.lists(CALLS, min_size=1, max_size=8), CALLS, st.integers(0, 7))
def test_another_call_is_refused_and_takes_nothing(made, other, at):
    again = kept(made)
    same = [r for r in made if r.channel == other.channel]
    at = min(at, len(same))
    for result in same[:at]:
        again.next(wanted(result))
    expected = same[at] if at < len(same) else None
    if expected is not None and wanted(expected) == wanted(other):
        return
    with pytest.raises(NotTheSame) as refusal:
        again.next(wanted(other))
    assert str(wanted(other)) in str(refusal.value)
    if expected is not None:
        assert f"called {wanted(expected)}" in str(refusal.value)
        assert again.next(wanted(expected)) == expected


def test_a_difference_is_named_with_both_calls():
    again = kept([Result("process group 0", "allreduce", "", [("float32", (3,))], [b""])])
    with pytest.raises(NotTheSame) as refusal:
        again.next(Result("process group 0", "broadcast", "root 0", [("int64", (1,))]))
    assert str(refusal.value).startswith(
        "the set-up calls broadcast (root 0) of int64 [1] as call 1 on process group 0; there the"
        " rank's first process called allreduce of float32 [3]. A replacement runs"
    )


def test_loops_are_named_as_loops():
    again = kept([Result(LOOPS, "job.steps to step 80", "", [], [])])
    with pytest.raises(NotTheSame) as refusal:
        again.next(Result(LOOPS, "job.steps to step 60", "", []))
    assert "the script runs job.steps to step 60 as pass 1; there" in str(refusal.value)
    assert "ran job.steps to step 80" in str(refusal.value)
    assert "taskd.once(load)" in str(refusal.value)


def test_a_result_that_is_not_known_is_not_given():
    again = kept([Result("g", "allreduce", "", [], None, "its 99.0 MiB are too many to be kept")])
    with pytest.raises(NotTheSame, match="not known: its 99.0 MiB are too many"):
        again.next(Result("g", "allreduce", "", []))


def test_calls_before_the_first_import_are_named():
    with pytest.raises(NotTheSame, match="made 3 collectives before `import taskd`"):
        kept([], missed=3).next(Result("g", "barrier", "", []))


def test_small_results_have_room_beside_large_ones():
    found = Results()
    sizes = [results.LARGE_LIMIT // 2, results.LARGE_LIMIT // 2, results.SMALL + 1, results.SMALL]
    assert [found.fits(size) for size in sizes] == [True, True, False, True]


def test_what_was_restored_anyway_makes_room():
    found = Results()
    assert found.fits(results.LARGE_LIMIT)
    large = found.add(Result("g", "broadcast", "", [], [bytes(results.LARGE_LIMIT)]))
    found.drop(large)
    assert large.data is None and large.restored and found.fits(results.LARGE_LIMIT)


def test_what_a_replacement_makes_itself_takes_the_place_of_what_was_left():
    made = [Result("g", "allreduce", "", [], [b"1"]), Result("g", "broadcast", "", [], [b"2"])]
    again = kept([*made, Result("h", "barrier", "", [], [])])
    again.next(wanted(made[0]))
    again.come_back(between=False)
    assert again.made == made[:1]


def test_between_passes_what_followed_the_last_pass_is_left():
    set_up, skipped, after = (
        Result("g", "allreduce", "", [], [b"1"]),
        Result("h", "barrier", "", [], []),
        [Result("g", "allreduce", "", [], [b"2"]), Result("h", "barrier", "", [], [])],
    )
    passes = [Result(LOOPS, "job.batches", "", [], [])] * 2
    again = kept([set_up, skipped, passes[0], *after, passes[1]])
    again.next(wanted(set_up))
    again.next(wanted(passes[0]))
    again.come_back(between=True)
    assert again.made == [set_up, passes[0], *after, passes[1]] and again.left
    assert [again.next(wanted(r)) for r in (*after, passes[1])] == [*after, passes[1]]
    assert not again.left


def test_only_so_many_calls_are_kept(monkeypatch):
    monkeypatch.setattr(results, "CALLS", 2)
    made = [Result("g", "barrier", "", [], [])] * 2
    again = kept(made)
    assert again.full
    for result in made:
        again.next(wanted(result))
    with pytest.raises(NotTheSame, match="only the first 2 calls are kept"):
        again.next(wanted(made[0]))


@given(st.binary(max_size=200))
def test_other_bytes_are_no_results(data):
    import msgspec

    try:
        Results().load(data)
    except msgspec.DecodeError:
        return


def rank(*calls: tuple[str, list[bytes] | None, str]) -> Results:
    made = Results()
    for call, data, unknown in calls:
        made.add(Result("process group 0", call, "", [], data, unknown))
    return made


SUM = Result("process group 0", "allreduce", "", [])


def test_a_peer_that_got_further_knows_what_the_call_gave():
    """What two of the ranks have sent each other counts for neither."""
    ours = rank(("allreduce", [b"1"], ""))
    assert ours.of_peer(SUM, rank(("allreduce", [b"1"], ""))) is None
    assert ours.of_peer(SUM, rank()) is None
    under_way = rank(("allreduce", [b"1"], ""), ("allreduce", None, results.PENDING))
    assert ours.of_peer(SUM, under_way) is None
    ahead = rank(("send", [], ""), ("allreduce", [b"1"], ""), ("allreduce", [b"2"], ""))
    found = ours.of_peer(SUM, ahead)
    assert found is not None and found.data == [b"2"]
    assert ours.of_peer(Result("process group 1", "allreduce", "", []), ahead) is None
    assert ours.of_peer(Result("process group 0", "recv", "", []), ahead) is None


@pytest.mark.parametrize("call", ["broadcast", "reduce_scatter"])
def test_what_a_peer_cannot_know_is_refused_by_name(call):
    """It is at another call, or each rank gets something else there."""
    wanted = SUM if call == "broadcast" else Result("process group 0", call, "", [])
    with pytest.raises(NotTheSame, match=f"calls {wanted.call} .* the end of {call}.*an attempt"):
        rank().of_peer(wanted, rank((call, [b"1"], "")))


def test_what_was_under_way_between_passes_is_not_given():
    known, waiting = ("allreduce", [b"1"], ""), ("allreduce", None, results.PENDING)
    again = kept(rank(known, waiting, known).made)
    again.come_back(between=True)
    assert again.next(SUM).data == [b"1"] and not again.left


def test_passes_that_were_passed_over_are_known_to_the_next_process():
    """A rank came back to a pass of which its record lacks the plans: they began while it was
    away. The record is loaded again where it has moved on meanwhile."""
    plans = [Result(LOOPS, f"epoch {number}", "", [], []) for number in range(4)]
    rank = kept(plans[:1])
    record = rank.encode()
    rank.next(wanted(plans[0]))
    rank.pass_over(plans[1])
    rank.load(record)
    rank.pass_over(plans[2])
    rank.come_back(between=False)
    rank.add(plans[3])
    again = kept(rank.made)
    for plan in plans:
        again.next(wanted(plan))
    assert again.exhausted(LOOPS)


def test_what_is_learnt_between_passes_is_called_too_much_once(monkeypatch):
    """A script that never begins a loop may make as many calls as it likes."""
    monkeypatch.setattr(results, "CALLS", 2)
    made = results.Results()
    for _ in range(2):
        made.add(results.Result("default", "barrier", "", []))
    assert made.full and made.too_many() == ""
    made = results.Results()
    made.add(results.Result(results.LOOPS, "job.steps to step 3", "", []))
    made.add(results.Result("default", "barrier", "", []))
    assert made.full and made.too_many() == results.TOO_MANY and made.too_many() == ""


def epoch(index: int) -> Result:
    return Result(LOOPS, f"{results.MARK}1{results.EPOCH}{index}", "", [], [])


def evaluated(value: bytes) -> Result:
    return Result("process group 0", "allreduce", "", [], [value])


def of_epochs(count: int) -> Results:
    """The results of a set-up, and of epochs with an evaluation each."""
    made = Results()
    made.fits(1)
    made.add(evaluated(b"s"))
    for index in range(count):
        made.begin_epoch(epoch(index))
        made.add(Result(LOOPS, "job.steps", "", [], []))
        made.fits(1)
        made.add(evaluated(b"%d" % index))
    return made


@given(st.integers(1, 9), st.integers(0, 1), st.booleans())
def test_a_replacement_gets_what_its_epoch_got(count, back, reloaded):
    """The results of two epochs are kept, whatever their number."""
    first, again = of_epochs(count), Results()
    assert len(first.made) == 1 + 3 * min(count, 2)
    assert first._small == 1 + min(count, 2)
    again.load(first.encode())
    assert again.next(wanted(evaluated(b""))).data == [b"s"]
    index = max(count - 1 - back, 0)
    again.go_to(epoch(index).call)
    if reloaded:
        again.load(first.encode())
    again.next(epoch(index))
    again.next(Result(LOOPS, "job.steps", "", [], []))
    assert again.next(wanted(evaluated(b""))).data == [b"%d" % index]


def test_a_mark_that_was_set_while_the_rank_was_away():
    again = kept(of_epochs(2).made)
    again.next(wanted(evaluated(b"")))
    again.go_to(epoch(7).call)
    assert not again.left and again.exhausted(LOOPS)


def test_a_peer_in_the_same_epoch_has_the_result():
    """Ranks drop what they got in earlier epochs at different moments."""
    ours, peer = of_epochs(3), of_epochs(4)
    ours.made.pop()  # it died in the evaluation
    peer.made[-1].answer = None
    found = ours.of_peer(wanted(evaluated(b"")), peer)
    assert found is not None and found.data == [b"2"]
    assert of_epochs(3).of_peer(wanted(evaluated(b"")), of_epochs(2)) is None


def test_a_loop_that_was_left_has_its_mark_where_it_was_left():
    made = of_epochs(2)
    at = len(made.made)
    made.add(evaluated(b"behind"))
    made.begin_epoch(epoch(-1), at)
    again = kept(made.made)
    again.next(wanted(evaluated(b"")))
    again.go_to(epoch(-1).call)
    again.next(epoch(-1))
    assert again.next(wanted(evaluated(b""))).data == [b"behind"]
