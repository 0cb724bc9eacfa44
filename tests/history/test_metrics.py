"""What the metrics of a manager count, and that there is a bound to their number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.incident.phases import Phase
from taskd.core.overview import STATES
from taskd.history.metrics.figures import KINDS, NODES, REPAIR, Figures
from taskd.history.model import Job
from taskd.history.reading import Record
from taskd.messages.node_progress import PHASES

LADDER = ("retry", "recover-in-place", "recover", "dump", "exit")
INCIDENT = {
    "incident": 1, "result": "repaired", "strategy": "recover-in-place", "seconds": 0.2,
    "phases": {"INTERRUPT": 0.006, "REPLACE": 0.07}, "ranks": (1,), "step": 3, "reached": 3,
}  # fmt: skip
FAULT = {"incident": 1, "began": 9.0, "text": "rank 1: gone"}


class Counted:
    """Figures, with the job that they follow."""

    def __init__(self, *entries, ranks=4):
        self.figures, self.job = Figures(LADDER), Job(most=1)
        self.add("start", 1.0, job="j", taskd="1", nodes=1, ranks_per_node=ranks)
        for kind, data in entries:
            self.add(kind, 10.0, **data)

    def add(self, kind, time, **data):
        self.job.add(record := Record(kind, time, data))
        self.figures.count(record, self.job)

    def update(self, time, state, dropped):
        self.job.until(time)
        self.figures.update(self.job, state, 2, dropped)

    @property
    def samples(self):
        """Each series, as its name and the values of its labels."""
        return {
            (s.name, *s.labels.values()): s.value
            for metric in self.figures.registry.collect()
            for s in metric.samples
        }

    def of(self, name):
        """The series of that name that are not 0, by their labels' values."""
        found = self.samples.items()
        return {tuple(rest): value for (n, *rest), value in found if n == name and value}


def test_incidents_by_strategy_result_phase_and_node():
    made = Counted(
        ("join", {"node": 5, "first": 0, "ranks": 4}),
        ("fault", FAULT),
        ("fault", FAULT),
        ("incident", INCIDENT),
    )
    assert made.samples[("taskd_faults_total",)] == 2
    assert made.of("taskd_incidents_total") == {("recover-in-place", "repaired"): 1}
    assert made.samples["taskd_incidents_total", "recover", "ended"] == 0  # before its first event
    assert made.samples["taskd_incident_seconds_sum", "repaired"] == 0.2
    assert made.samples["taskd_incident_seconds_bucket", "repaired", "0.25"] == 1
    assert made.samples["taskd_incident_seconds_bucket", "repaired", "0.1"] == 0
    assert made.of("taskd_phase_seconds_sum") == {("INTERRUPT",): 0.006, ("REPLACE",): 0.07}
    assert made.of("taskd_node_incidents_total") == {("5",): 1}
    assert made.samples[("taskd_incident_began_timestamp_seconds",)] == 0


def test_a_lost_node_counts_for_its_incident_and_no_other():
    over = {**INCIDENT, "ranks": ()}
    made = Counted(("lost", {"node": 3}), ("incident", over), ("incident", over))
    assert made.of("taskd_node_incidents_total") == {("3",): 1}
    assert made.samples[("taskd_lost_nodes_total",)] == 1


def test_nodes_beyond_the_first_are_counted_together():
    made = Counted(*[("join", {"node": n, "first": n, "ranks": 1}) for n in range(NODES + 20)])
    for rank in (*range(NODES + 20), 0):
        made.add("incident", 10.0, **{**INCIDENT, "ranks": (rank,)})
    counted = made.of("taskd_node_incidents_total")
    assert len(counted) == NODES + 1 and counted[("other",)] == 20 and counted[("0",)] == 2


def test_the_incident_under_way():
    made = Counted(("fault", FAULT))
    left = ("taskd_ladder_strategies_left",)
    assert made.samples[("taskd_incident_began_timestamp_seconds",)] == 9.0
    assert made.samples[left] == 3
    for strategy, strategies in (
        ("retry", 2),
        ("recover", 0),
        ("dump", 0),
        ("hot-switch", 3),
        ("grow", 3),
    ):
        made.add("decision", 11.0, strategy=strategy)
        assert made.samples[left] == strategies
    made.add("incident", 12.0, **INCIDENT)
    assert made.samples[left] == 3


def test_ranks_by_state_are_all_ranks():
    said = {"step": 3, "highest": 4, "total": 9, "rate": 60.0, "usual": 0.5, "heard": 1.0}
    said["phases"] = {"computing": 2, "77": 1}
    made = Counted(ranks=5)
    assert ("taskd_step",) not in made.samples  # it is not known
    made.add("progress", 10.0, **said, slow=[[7, 1, 0.9], [8, 1, 0.8]])
    known = made.of("taskd_ranks")
    assert known == {("computing",): 2, ("other",): 1, ("unseen",): 2}
    assert made.of("taskd_slow_rank_seconds") == {("7", "1"): 0.9, ("8", "1"): 0.8}
    names = ("step", "step_highest", "step_end", "step_seconds", "steps_per_second")
    values = [made.samples[(f"taskd_{name}",)] for name in (*names, "heartbeat_age_seconds")]
    assert values == [3, 4, 9, 0.5, 1.0, 1.0]
    made.add("progress", 20.0, **said, slow=[[8, 1, 0.7]])
    assert made.of("taskd_slow_rank_seconds") == {("8", "1"): 0.7}


def test_ranks_that_are_away():
    made = Counted(ranks=8)
    sizes = ("taskd_training_ranks", "taskd_away_ranks", "taskd_step_shares")
    assert [made.samples[(name,)] for name in sizes] == [8, 0, 1]
    made.add("elastic", 10.0, ranks=5, of=8, away=[[5, 7, 1]], shares=2)
    assert [made.samples[(name,)] for name in sizes] == [5, 3, 2]
    made.add("progress", 20.0, step=3, phases={"computing": 3, "gone": 1})
    assert made.of("taskd_ranks") == {
        ("computing",): 3,
        ("gone",): 1,
        ("away",): 3,
        ("unseen",): 1,
    }
    made.add("elastic", 30.0, ranks=8, of=8, away=[], shares=1)
    assert [made.samples[(name,)] for name in sizes] == [8, 0, 1]
    made.add("elastic", 40.0, ranks=5, of=8, away=[[5, 7, 1]], shares=2)
    made.add("restart", 50.0, why="x")
    assert [made.samples[(name,)] for name in sizes] == [8, 0, 1]
    made.add("progress", 60.0, step=3, phases={"computing": 4})
    assert made.of("taskd_ranks") == {("computing",): 4, ("unseen",): 4}


@pytest.mark.parametrize("strategy", ["elastic-training", "grow", "hot-switch"])
def test_an_incident_of_each_strategy_is_counted_under_its_name(strategy):
    made = Counted(("incident", {**INCIDENT, "strategy": strategy}))
    assert made.of("taskd_incidents_total") == {(strategy, "repaired"): 1}


def test_time_lost_because_ranks_are_away():
    made = Counted(("protected", {}))
    made.add("elastic", 20.0, ranks=2, of=4, away=[[2, 3, 1]], shares=2)
    made.update(30.0, "training", {})
    assert made.samples["taskd_spent_seconds_total", "training"] == 15.0
    assert made.samples["taskd_spent_seconds_total", "shrunk"] == 5.0


def test_what_the_manager_looks_up():
    made = Counted(("protected", {}))
    for time, number in ((12.0, 2), (14.0, 3), (14.0, 3)):
        made.update(time, "training", {"no key": number})
    assert made.samples["taskd_spent_seconds_total", "training"] == 4.0
    assert made.samples[("taskd_goodput_ratio",)] == 1.0
    assert made.samples[("taskd_manager_term",)] == 2
    for state in STATES[:-1]:
        assert made.samples["taskd_job_state", state] == (state == "training")
    assert ("taskd_job_state", "silent") not in made.samples
    assert made.of("taskd_dropped_messages_total") == {("no key",): 3}
    assert made.samples["taskd_build_info", "1"] == made.samples["taskd_job_info", "j"] == 1


def test_time_that_a_fault_takes_back_does_not_count_down():
    """For Prometheus a counter that has gone down has begun anew."""
    made = Counted(("protected", {}))
    made.update(20.0, "training", {})
    made.add("fault", 21.0, incident=1, began=15.0, text="rank 1: silent")
    made.update(21.0, "repairing", {})
    training = ("taskd_spent_seconds_total", "training")
    assert made.samples[training] == 10.0 and made.job.spent.seconds["training"] == 5.0
    assert made.samples["taskd_spent_seconds_total", "incident"] == 6.0
    made.add("incident", 22.0, **INCIDENT)
    made.update(40.0, "training", {})
    assert made.samples[training] == made.job.spent.seconds["training"] == 23.0


@pytest.mark.parametrize("state", STATES[:-1])
def test_a_job_is_in_one_state(state):
    made = Counted()
    made.update(1.0, state, {})
    assert made.of("taskd_job_state") == {(state,): 1}


TEXT = st.text(max_size=8)
NUMBER = st.integers(0, 100_000)
ENTRIES = st.one_of(
    st.tuples(
        st.just("incident"),
        st.fixed_dictionaries(
            {
                "strategy": TEXT,
                "result": TEXT,
                "seconds": st.floats(0, 1e6),
                "phases": st.dictionaries(TEXT, st.floats(0, 1e6), max_size=5),
                "ranks": st.lists(NUMBER, max_size=200),
            }
        ),
    ),
    st.tuples(st.just("lost"), st.fixed_dictionaries({"node": NUMBER})),
    st.tuples(st.just("fault"), st.fixed_dictionaries({"began": st.floats(0, 1e6)})),
    st.tuples(st.just("decision"), st.fixed_dictionaries({"strategy": TEXT})),
    st.tuples(
        st.just("progress"),
        st.fixed_dictionaries(
            {
                "phases": st.dictionaries(TEXT, NUMBER, max_size=20),
                "slow": st.lists(st.tuples(NUMBER, NUMBER, st.floats(0, 9)), max_size=30),
            }
        ),
    ),
)
MOST = (
    43  # metrics
    + (NODES + 1)
    + (KINDS + 1)
    + len(STATES)
    + len(PHASES)
    + 3
    + 10  # slow ranks
    + 10 * 4  # strategies, results
    + (len(Phase) + 1 + 4) * (len(REPAIR) + 3)
    + 22  # the manager's loop, agents, what time goes to, notices
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, max_size=40), st.dictionaries(TEXT, NUMBER, max_size=60))
def test_the_number_of_series_is_bounded(entries, dropped):
    made = Counted(*entries, ranks=1)
    # every rank of a large job has a node of its own
    for kind, data in entries:
        made.add(kind, 10.0, **data)
    made.update(20.0, "training", dropped)
    made.figures.agents(
        dict.fromkeys(("running", "missing", "moving", "away", "lost", "ended", "standby"), 1)
    )
    made.figures.notices({"failed": 1})
    names = [name for name, *_ in made.samples]
    assert len(names) <= MOST
    assert names.count("taskd_node_incidents_total") <= NODES + 1
    assert names.count("taskd_slow_rank_seconds") <= 10
    assert not [name for name in names if name.endswith("_created")]
