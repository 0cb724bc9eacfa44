"""The boundary of a pause, and the answers to requests. tests/scenarios/pause*.txt have pauses in
incidents."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.election.election import Election
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_rank, to_agent, to_operator, to_rank

NODES, EACH = 2, 2
RANKS = range(NODES * EACH)


def standing():
    job = JobState(Settings(NODES, EACH), Election())
    for node in range(NODES):
        job.topology.join(node, tuple(range(node * EACH, node * EACH + EACH)), ("h", 1), 0)
    job.protected = True
    return job, Pause(job)


STEPS = st.integers(0, 6)
HAPPENINGS = st.one_of(
    st.tuples(st.just("begun"), st.integers(0, NODES - 1), STEPS),
    st.tuples(st.just("paused"), st.sampled_from(RANKS), STEPS),
    st.tuples(st.just("passed"), st.sampled_from(RANKS), STEPS),
    st.tuples(st.just("finished"), st.sampled_from(RANKS), STEPS),
    st.tuples(st.just("request"), st.just(0), st.just(0)),
    st.tuples(st.just("again"), st.just(0), st.just(0)),
    st.tuples(st.sampled_from(["continue", "drop", "move", "moved"]), st.just(0), st.just(0)),
)


@given(st.lists(HAPPENINGS, max_size=40))
@settings(max_examples=500)
def test_any_story(story):
    job, pause = standing()
    requests = answered = 0
    open_requests: set[str] = set()
    boundary: int | None = None  # as ordered
    operators = move = passing = False
    begun: dict[int, int] = {}
    stopped: dict[int, int] = {}  # rank -> the step before which it last reported to be paused
    for what, who, step in story:
        job.out = []
        if what == "request":
            open_requests.add(f"r{(requests := requests + 1)}")
            pause.request(f"r{requests}")
        elif what == "begun":
            pause.begun(from_agent.StepsBegun(who, step))
        elif what == "paused":
            pause.stopped(from_rank.RankPaused(who, 0, step))
            stopped[who] = step
        elif what == "passed":
            pause.passed(from_rank.RankPassed(who, 0, step))
        elif what == "finished":
            job.ranks[who].finished = step
        elif what == "move":
            pause.begin_move()
        elif what == "moved":
            pause.end_move()
        elif what == "again":
            pause.again()
            stopped.clear()
        elif what == "continue":
            open_requests.add("go")
            pause.release("go")
        else:
            pause.drop("why")
        pause.check()
        asked = any(isinstance(x, to_agent.AskSteps) for x in job.out)
        moves = [x.step for x in job.out if isinstance(x, to_rank.Pause)]
        if asked:
            boundary, begun = None, {}
            assert not moves
        if what == "begun" and pause.wanted and boundary is None:
            begun[who] = step
            assert bool(moves) == (len(begun) == NODES)
            assert not moves or moves == [max(begun.values())], (
                "ranks are ordered to stop before a step that they have begun"
            )
        for to in moves:
            # the same boundary once more, with another `passing`
            joins = what in ("request", "continue") and move
            assert boundary is None or to > boundary or (joins and to == boundary), (
                "the boundary goes back: ranks behind it stay paused forever"
            )
            boundary = to
        operators = what == "request" or (operators and what not in ("continue", "drop"))
        move = what == "move" or (move and what not in ("moved", "drop"))
        if what in ("continue", "moved", "drop") and not operators and not move:
            assert (
                what == "drop"
                or boundary is None
                or any(isinstance(x, to_rank.Continue) for x in job.out)
            ), "the ranks get no Continue"
            boundary = None
        for order in (x for x in job.out if isinstance(x, to_rank.Pause)):
            passing = order.passing
        assert boundary is None or not (operators and passing), (
            "a pause for operators ends with the manager"
        )
        assert pause.step == boundary
        if boundary is not None and what == "passed":
            assert boundary > step
        if boundary is not None and what == "paused":
            assert boundary >= step
        for answer in (x for x in job.out if isinstance(x, to_operator.Answer)):
            assert answer.request in open_requests, "answered twice"
            open_requests.discard(answer.request)
            answered += 1
            if answer.ok and answer.request != "go":
                assert all(
                    stopped.get(r) == boundary or job.ranks[r].finished is not None for r in RANKS
                )
        if boundary is not None and all(stopped.get(r) == boundary for r in RANKS):
            assert not open_requests, "all ranks are paused, but a request has no answer"
        if what in ("continue", "drop"):
            assert not open_requests
        assert pause.wanted or not open_requests


def test_nodes_that_are_gone_are_not_waited_for():
    job, pause = standing()
    job.topology.nodes[1].ended = True
    pause.request("a")
    pause.begun(from_agent.StepsBegun(0, 6))
    assert pause.step == 6
