"""What ranks profile, and which of them the others wait for."""

from __future__ import annotations

import random

import pytest

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.job.state import JobState
from taskd.core.requests.profiling import Profiling
from taskd.core.settings import Settings
from taskd.messages import from_agent, from_operator, from_rank, to_operator, to_rank


class Job:
    def __init__(self, ranks=4, term=1):
        from taskd.core.election.election import Election

        self.state = JobState(Settings(nodes=1, ranks_per_node=ranks), Election())
        self.state.election.candidate.term = term
        self.part, self.now = Profiling(self.state), 0.0

    def said(self):
        said, self.state.out = self.state.out, []
        return said

    def notes(self):
        return [x.text for x in self.said() if isinstance(x, c.Note)]

    def round(self, waits, step=100, taken=0.1, steps=10):
        """Every rank's report; `waits`: seconds a step."""
        self.now += 5.0
        for rank, waited in enumerate(waits):
            event = from_rank.StepTimes(rank, 0, step, steps, taken * steps, waited * steps)
            self.part.took(event, self.now)


def test_the_last_who_says_something_counts():
    job = Job()
    job.part.switched(e.ProfileSwitched((0, 4), "ClusterD"), 0.0)
    assert to_rank.Profile((0, 4)) in job.said()
    job.part.requested(from_operator.ProfileRequested("A", (4, 0)), 0.0)
    assert job.said() == [
        to_operator.Answer("A", True, "ranks profile Step, CommunicationOperator")
    ]
    job.part.requested(from_operator.ProfileRequested("B", ()), 0.0)
    assert to_rank.Profile(()) in job.said()
    assert job.part.ranges == ()


def agent(profile):
    return from_agent.AgentJoined(0, (0,), ("", 0), agent="a", profile=profile)


def test_an_agent_that_joins_is_told():
    job = Job()
    job.part.switched(e.ProfileSwitched((1,), "a file"), 0.0)
    job.said()
    job.part.registered(agent(()), 0.0)
    assert job.said() == [to_rank.Profile((1,))]
    job.part.registered(agent((1,)), 0.0)
    assert job.said() == []


def test_the_next_manager_goes_on():
    job = Job(term=2)
    job.part.registered(agent((0, 2)), 0.0)
    assert job.part.ranges == ("Step", "FP") and job.said() == []
    job.part.registered(agent(()), 0.0)  # one that has missed the order
    assert job.said() == [to_rank.Profile((0, 2))]


def on(**more):
    job = Job(**more)
    job.part.switched(e.ProfileSwitched((4,), "a test"), 0.0)
    job.said()
    return job


def test_the_rank_that_does_not_wait_is_slow():
    job = on()
    job.round([0.03, 0.031, 0.001, 0.03])
    assert job.notes() == [] and job.part.slow() == ()
    job.round([0.03, 0.031, 0.001, 0.03], step=110)
    (note,) = job.notes()
    assert note == "rank 2 makes the others wait 29 ms in each step of 100 ms, since step 91"
    assert [(rank, round(late, 3)) for rank, late, _ in job.part.slow()] == [(2, 0.029)]
    job.round([0.03, 0.031, 0.001, 0.03])
    assert job.notes() == []  # said once
    for _ in range(3):  # the median of the first is one of reports from before
        job.round([0.002, 0.002, 0.001, 0.002])
    assert job.notes() == ["rank 2 no longer makes the others wait"]


def test_noise_names_nobody():
    job, draw = on(ranks=8), random.Random(1)
    for _ in range(200):
        job.round([draw.uniform(0.010, 0.018) for _ in range(8)])
    assert job.notes() == []


def test_one_outlier_names_nobody():
    job = on()
    for number in range(20):
        job.round([0.03, 0.03, 0.03, 0.001 if number % 2 else 0.03])
    assert job.notes() == []


def test_nothing_is_named_that_is_not_profiled():
    job = on()
    job.part.switched(e.ProfileSwitched((), "a test"), 0.0)
    job.said()
    for _ in range(3):
        job.round([0.03, 0.03, 0.001, 0.03])
    assert job.notes() == [] and job.part.slow() == ()


def test_ten_thousand_ranks_cost_no_look_at_all_of_them_for_each():
    """Reports that come within a second are compared with one median."""
    job = on(ranks=10_000)
    looked = []
    original = sorted

    import taskd.core.requests.profiling as module

    module.sorted = lambda *a, **k: looked.append(1) or original(*a, **k)
    try:
        for _ in range(3):
            job.round([0.03] * 9_999 + [0.0])
    finally:
        del module.sorted
    assert len(looked) <= 4
    assert job.notes()[0].startswith("rank 9999 makes")


def waited(job, waits, before, taken=0.1, steps=50):
    """What heartbeats tell of a node with all ranks."""
    job.now += 5.0
    ranks = tuple(range(len(waits)))
    job.part.waited(e.StepsWaited(ranks, before, before + steps, taken, tuple(waits)), job.now)


def test_a_slow_rank_is_named_without_a_profile():
    job = Job()
    job.state.protected = True
    waited(job, [0.03, 0.031, 0.001, 0.03], 100)
    assert job.notes() == []
    waited(job, [0.03, 0.031, 0.001, 0.03], 150)
    said = job.said()
    (entry,) = (x for x in said if isinstance(x, c.Entry))
    told = {"rank": 2, "state": "begun", "since": 100, "began": 0.0, "late": 0.029, "step": 0.1}
    assert {**entry.data, "late": round(entry.data["late"], 6)} == told
    assert any(
        "rank 2 makes the others wait 29 ms" in x.text for x in said if isinstance(x, c.Note)
    )
    for before in (200, 250):  # it becomes slower: the journal says so, the log need not
        waited(job, [0.2, 0.2, 0.001, 0.2], before, taken=0.25)
    said = job.said()
    (entry,) = (x for x in said if isinstance(x, c.Entry))
    assert (entry.data["state"], entry.data["late"]) == ("changed", pytest.approx(0.199))
    assert not any(isinstance(x, c.Note) for x in said)
    for before in (300, 350):
        waited(job, [0.001, 0.001, 0.001, 0.001], before)
    assert job.notes() == ["rank 2 no longer makes the others wait"]


def test_what_a_profile_tells_is_better():
    job = on()
    job.state.protected = True
    for before in (100, 150, 200):
        waited(job, [0.03, 0.031, 0.001, 0.03], before)
    assert job.notes() == []


def test_a_slow_rank_of_which_nothing_is_heard_any_more():
    job = Job()
    job.state.protected = True
    for before in (100, 150):
        waited(job, [0.03, 0.031, 0.03, 0.001], before)
    job.said()
    for before in range(200, 700, 50):
        waited(job, [0.03, 0.031, 0.03], before)
    (entry,) = (x for x in job.said() if isinstance(x, c.Entry))
    assert (entry.data["rank"], entry.data["state"]) == (3, "over") and job.part.slow() == ()
