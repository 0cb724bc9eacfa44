"""Every metric of a manager: name, type, labels and meaning. docs/monitoring.md has the same."""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
# A repair on one node takes some 100 ms, one with a new node seconds to minutes, and 270 s is what
# a job waits for a standby by default.
REPAIR = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# A message takes some 50 us, and a turn reads up to 1000; a second is what other limits allow for.
TURN = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Metric:
    """`name` is without the suffix _total of a counter."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def shown(self) -> str:
        return f"{self.name}_total" if self.kind == COUNTER else self.name


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, COUNTER, meaning, labels)


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, GAUGE, meaning, labels)


METRICS = (
    _gauge("taskd_build_info", "1; the version of taskd", "version"),
    _gauge("taskd_job_info", "1; the job's name", "name"),
    _gauge("taskd_manager_start_timestamp_seconds", "when this manager began"),
    _gauge("taskd_manager_term", "term of this manager, 1 for the first of a job"),
    Metric(
        "taskd_manager_loop_seconds",
        HISTOGRAM,
        "time of a turn of the manager's loop, without the wait for messages",
        buckets=TURN,
    ),
    _counter("taskd_dropped_messages", "messages that were not accepted", "kind"),
    _gauge("taskd_job_state", "1 for the state of the job, 0 for the others", "state"),
    _gauge("taskd_agents", "nodes by what their agents do, and standbys", "state"),
    _gauge("taskd_ranks", "ranks by phase, as the last heartbeats had it", "state"),
    _gauge("taskd_heartbeat_age_seconds", "age of the oldest heartbeat of a node"),
    _gauge("taskd_step", "the step that every rank has come to"),
    _gauge("taskd_step_highest", "the highest step that a rank has come to"),
    _gauge("taskd_step_end", "the step before which the loop ends, 0 if not known"),
    _gauge("taskd_step_seconds", "time that an attempt usually takes the median rank"),
    _gauge("taskd_steps_per_second", "steps lately, over a minute"),
    _gauge(
        "taskd_slow_rank_seconds", "that time, of the slowest ranks, at most 10", "rank", "node"
    ),
    _counter("taskd_spent_seconds", "what the time of the job went to", "activity"),
    _gauge("taskd_goodput_ratio", "share of that time that was training"),
    _gauge("taskd_repairs_enabled", "1 if faults are repaired, 0 while that is paused"),
    _counter("taskd_faults", "faults, of which an incident may have several"),
    _counter("taskd_incidents", "incidents that are over", "strategy", "result"),
    Metric("taskd_incident_seconds", HISTOGRAM, "duration of an incident", ("result",), REPAIR),
    Metric("taskd_phase_seconds", HISTOGRAM, "time of an incident in a phase", ("phase",), REPAIR),
    _gauge("taskd_incident_began_timestamp_seconds", "when the incident under way began, 0: none"),
    _gauge("taskd_ladder_strategies_left", "strategies that could still repair after this one"),
    _counter("taskd_node_incidents", "incidents in which a node or a rank of it was lost", "node"),
    _counter("taskd_replaced_ranks", "processes of ranks that were replaced"),
    _counter("taskd_lost_nodes", "nodes that were lost"),
    _counter("taskd_restarts", "restarts of all ranks"),
    _counter("taskd_notices", "notices by what became of them (TASKD_NOTIFY)", "result"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
