"""What the figures of a manager count, and that there is a bound to their number."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskd.core.incident.phases import Phase
from taskd.core.overview import STATES
from taskd.journal.reading import Record
from taskd.messages.from_agent import PHASES
from taskd.metrics.figures import KINDS, NODES, Figures
from taskd.metrics.table import METRICS, REPAIR

LADDER = ("retry", "recover-in-place", "recover", "dump", "exit")
INCIDENT = {
    "incident": 1,
    "result": "repaired",
    "strategy": "recover-in-place",
    "seconds": 0.2,
    "phases": {"INTERRUPT": 0.006, "REPLACE": 0.07},
    "ranks": (1,),
    "step": 3,
    "reached": 3,
}


def figures(*entries, ranks=4):
    made = Figures(ranks, LADDER)
    for kind, data in entries:
        made.take(Record(kind, 10.0, data))
    return made


def value(made, name, *labels):
    return made.values[name][labels]


def test_incidents_by_strategy_result_phase_and_node():
    made = figures(
        ("join", {"node": 5, "first": 0, "ranks": 4}),
        ("fault", {"incident": 1, "began": 9.0}),
        ("fault", {"incident": 1, "began": 9.0}),
        ("incident", INCIDENT),
    )
    assert value(made, "taskd_faults") == 2
    known = made.values["taskd_incidents"]
    assert {labels: n for labels, n in known.items() if n} == {("recover-in-place", "repaired"): 1}
    assert known[("recover", "ended")] == 0  # there before its first event
    counted = made.histograms["taskd_incident_seconds"][("repaired",)]
    assert sum(counted.counts) == 1 and counted.sum == 0.2
    assert counted.counts[REPAIR.index(0.25)] == 1
    phases = made.histograms["taskd_phase_seconds"]
    assert {labels: h.sum for labels, h in phases.items() if h.sum} == {
        ("INTERRUPT",): 0.006,
        ("REPLACE",): 0.07,
    }
    assert made.values["taskd_node_incidents"] == {("5",): 1}
    assert value(made, "taskd_incident_began_timestamp_seconds") == 0


def test_a_lost_node_counts_for_its_incident_and_no_other():
    over = {**INCIDENT, "ranks": ()}
    made = figures(("lost", {"node": 3}), ("incident", over), ("incident", over))
    assert made.values["taskd_node_incidents"] == {("3",): 1}
    assert value(made, "taskd_lost_nodes") == 1


def test_nodes_beyond_the_first_are_counted_together():
    made = figures(*[("join", {"node": n, "first": n, "ranks": 1}) for n in range(NODES + 20)])
    for rank in (*range(NODES + 20), 0):
        made.take(Record("incident", 10.0, {**INCIDENT, "ranks": (rank,)}))
    counted = made.values["taskd_node_incidents"]
    assert len(counted) == NODES + 1 and counted[("other",)] == 20 and counted[("0",)] == 2


def test_the_incident_under_way():
    made = figures(("fault", {"incident": 1, "began": 9.0}))
    assert value(made, "taskd_incident_began_timestamp_seconds") == 9.0
    assert value(made, "taskd_ladder_strategies_left") == 3
    for strategy, left in (("retry", 2), ("recover", 0), ("dump", 0), ("hot-switch", 3)):
        made.take(Record("decision", 11.0, {"strategy": strategy}))
        assert value(made, "taskd_ladder_strategies_left") == left
    made.take(Record("incident", 12.0, INCIDENT))
    assert value(made, "taskd_ladder_strategies_left") == 3


def test_ranks_by_state_are_all_ranks():
    said = {"step": 3, "highest": 4, "total": 9, "rate": 60.0, "usual": 0.5, "heard": 1.0}
    phases = {"computing": 2, "77": 1}
    made = figures(("progress", {**said, "phases": phases, "slow": [[7, 1, 0.9]]}), ranks=5)
    known = {labels[0]: n for labels, n in made.values["taskd_ranks"].items() if n}
    assert known == {"computing": 2, "other": 1, "unseen": 2}
    assert made.values["taskd_slow_rank_seconds"] == {("7", "1"): 0.9}
    assert value(made, "taskd_steps_per_second") == 1.0
    made.take(Record("progress", 20.0, {**said, "phases": phases, "slow": []}))
    assert made.values["taskd_slow_rank_seconds"] == {}


def test_what_the_manager_looks_up():
    made = figures(("start", {"job": "j", "taskd": "1"}), ("protected", {}))
    made.look(14.0, "training", 2, {"no key": 3})
    assert value(made, "taskd_spent_seconds", "training") == 4.0
    assert value(made, "taskd_goodput_ratio") == 1.0
    assert value(made, "taskd_manager_term") == 2
    states = {labels[0]: n for labels, n in made.values["taskd_job_state"].items()}
    assert states == {state: state == "training" for state in STATES if state != "silent"}
    assert made.values["taskd_dropped_messages"] == {("no key",): 3}


@pytest.mark.parametrize("state", STATES[:-1])
def test_a_job_is_in_one_state(state):
    made = figures()
    made.look(1.0, state, 0, {})
    assert sum(made.values["taskd_job_state"].values()) == 1


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
    len(METRICS)
    + (NODES + 1)
    + (KINDS + 1)
    + len(STATES)
    + len(PHASES)
    + 2
    + 10  # slow ranks
    + 9 * 4  # strategies, results
    + (len(Phase) + 1 + 4) * (len(REPAIR) + 3)
    + 20  # the manager's loop, agents, what time goes to, notices
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ENTRIES, max_size=40), st.dictionaries(TEXT, NUMBER, max_size=60))
def test_the_number_of_series_is_bounded(entries, dropped):
    made = figures(("join", {"node": 0, "first": 0, "ranks": 8}))
    # every rank of a large job has a node of its own
    made._node_of.update((rank, rank) for rank in range(0, 100_001, 7))
    for kind, data in entries:
        made.take(Record(kind, 10.0, data))
    made.look(20.0, "training", 1, dropped)
    made.agents(dict.fromkeys(("running", "missing", "moving", "lost", "ended", "standby"), 1))
    series = sum(len(labels) for labels in made.values.values()) + sum(
        len(labels) * (len(next(iter(labels.values())).buckets) + 3)
        for labels in made.histograms.values()
        if labels
    )
    assert series <= MOST
    assert len(made.values["taskd_node_incidents"]) <= NODES + 1
    assert len(made.values["taskd_slow_rank_seconds"]) <= 10
