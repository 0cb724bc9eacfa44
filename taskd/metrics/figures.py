"""What the metrics of a manager count: plain numbers, changed by the manager's loop alone. Another
thread reads copies, so the loop never waits for it.

The number of series is bounded, whatever happens to the job and whatever its agents say: a label
has one of a few known values, or OTHER; nodes are counted one by one up to NODES, and ranks are
named while they are among the slowest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from taskd.core.incident.ladder import ENDING, HOT_SWITCH, STRATEGIES
from taskd.core.incident.phases import FINAL, Phase
from taskd.core.overview import STATES
from taskd.journal.goodput import Spent
from taskd.journal.reading import Record
from taskd.messages.from_agent import PHASES
from taskd.messages.to_operator import WORST
from taskd.metrics.table import BY_NAME, COUNTER, HISTOGRAM, METRICS

OTHER, NONE = "other", "none"
NODES = 50  # that are counted one by one
KINDS = 30  # of dropped messages; taskd has a dozen
UNSEEN = "unseen"  # of ranks: no heartbeat of their node is known
RESULTS = ("repaired", "restarted", "ended")

Labels = tuple[str, ...]


@dataclass
class Histogram:
    """`counts`: of each bucket alone, and of what is above the last one."""

    buckets: tuple[float, ...]
    counts: list[int]
    sum: float = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.buckets, value)] += 1
        self.sum += value


class Figures:
    """`ranks`: of the job. `values` and `histograms`: by metric, then by its labels' values."""

    def __init__(self, ranks: int, ladder: Collection[str]) -> None:
        self.values: dict[str, dict[Labels, float]] = {
            metric.name: {} for metric in METRICS if metric.kind != HISTOGRAM
        }
        self.histograms: dict[str, dict[Labels, Histogram]] = {
            metric.name: {} for metric in METRICS if metric.kind == HISTOGRAM
        }
        # what appears with its first event has no rate for that one
        for metric in METRICS:
            if metric.kind == COUNTER and not metric.labels:
                self.add(metric.name, by=0.0)
        for result in RESULTS:
            self._histogram("taskd_incident_seconds", result)
            for strategy in ladder:
                self.add("taskd_incidents", strategy, result, by=0.0)
        for phase in Phase:
            if phase not in FINAL:
                self._histogram("taskd_phase_seconds", phase.value)
        self._histogram("taskd_manager_loop_seconds")
        self.spent = Spent()
        self._ranks = ranks
        self._repairing = [s for s in ladder if s not in ENDING]
        self._node_of: dict[int, int] = {}
        self._lost: set[int] = set()  # nodes, in the incident under way
        self._turn = self.histograms["taskd_manager_loop_seconds"][()]
        self.put("taskd_repairs_enabled", 1)
        self._none_under_way()

    # -- how they change ---------------------------------------------------------------------------

    def add(self, name: str, *labels: str, by: float = 1.0) -> None:
        known = self.values[name]
        known[labels] = known.get(labels, 0.0) + by

    def put(self, name: str, value: float, *labels: str) -> None:
        self.values[name][labels] = float(value)

    def put_all(self, name: str, values: Mapping[Labels, float]) -> None:
        """The values of a metric, in place of those before."""
        self.values[name] = dict(values)

    def _histogram(self, name: str, *labels: str) -> Histogram:
        known = self.histograms[name]
        if labels not in known:
            buckets = BY_NAME[name].buckets
            known[labels] = Histogram(buckets, [0] * (len(buckets) + 1))
        return known[labels]

    def turn(self, seconds: float) -> None:
        """A turn of the manager's loop."""
        self._turn.add(seconds)

    # -- what the journal says ---------------------------------------------------------------------

    def take(self, record: Record) -> None:
        self.spent.take(record)
        follow = _FOLLOW.get(record.kind)
        if follow is not None:
            follow(self, record)

    def _start(self, record: Record) -> None:
        self.put("taskd_build_info", 1, record.text("taskd"))
        self.put("taskd_job_info", 1, record.text("job"))
        self.put("taskd_manager_start_timestamp_seconds", record.time)

    def _join(self, record: Record) -> None:
        node, first = record.whole("node"), record.whole("first")
        self._node_of.update(dict.fromkeys(range(first, first + record.whole("ranks")), node))

    def _lose(self, record: Record) -> None:
        self.add("taskd_lost_nodes")
        self._lost.add(record.whole("node"))

    def _progress(self, record: Record) -> None:
        for name, field_ in _PROGRESS.items():
            self.put(name, record.number(field_))
        self.put("taskd_steps_per_second", record.number("rate") / 60.0)
        phases = dict.fromkeys((*PHASES, OTHER), 0)
        for phase, ranks in record.table("phases").items():
            phases[phase if phase in PHASES else OTHER] += ranks
        phases[UNSEEN] = max(self._ranks - sum(phases.values()), 0)
        self.put_all("taskd_ranks", {(phase,): n for phase, n in phases.items()})
        slow = record.several("slow")[:WORST]
        self.put_all("taskd_slow_rank_seconds", {(str(r), str(n)): s for r, n, s in slow})

    def _fault(self, record: Record) -> None:
        self.add("taskd_faults")
        self.put("taskd_incident_began_timestamp_seconds", record.number("began", record.time))

    def _decision(self, record: Record) -> None:
        chosen = record.text("strategy")
        if chosen in ENDING:
            left = 0
        elif chosen in self._repairing:
            left = len(self._repairing) - 1 - self._repairing.index(chosen)
        else:  # a hot switch: what follows it is an ordinary fault
            left = len(self._repairing)
        self.put("taskd_ladder_strategies_left", left)

    def _incident(self, record: Record) -> None:
        strategy, result = record.text("strategy") or NONE, record.text("result")
        known = (*STRATEGIES, HOT_SWITCH, NONE)
        result = result if result in RESULTS else OTHER
        self.add("taskd_incidents", strategy if strategy in known else OTHER, result)
        self._histogram("taskd_incident_seconds", result).add(record.number("seconds"))
        for phase, seconds in record.table("phases").items():
            phase = phase if phase in Phase.__members__ else OTHER
            self._histogram("taskd_phase_seconds", phase).add(seconds)
        hit = {n for r in record.several("ranks") if (n := self._node_of.get(r)) is not None}
        for node in sorted(hit | self._lost):
            counted = self.values["taskd_node_incidents"]
            one_more = (str(node),) in counted or len(counted) < NODES
            self.add("taskd_node_incidents", str(node) if one_more else OTHER)
        self._none_under_way()

    def _none_under_way(self) -> None:
        self._lost.clear()
        self.put("taskd_incident_began_timestamp_seconds", 0)
        self.put("taskd_ladder_strategies_left", len(self._repairing))

    def _replace(self, record: Record) -> None:
        self.add("taskd_replaced_ranks")

    def _restart(self, record: Record) -> None:
        self.add("taskd_restarts")

    def _switch(self, record: Record) -> None:
        self.put("taskd_repairs_enabled", record.data.get("on") is not False)

    # -- what the manager looks up about once a second ---------------------------------------------

    def look(self, unix: float, state: str, term: int, dropped: Mapping[str, int]) -> None:
        self.spent.until(unix)
        for kind, seconds in self.spent.seconds.items():
            self.put("taskd_spent_seconds", seconds, kind)
        self.put("taskd_goodput_ratio", self.spent.goodput)
        self.put("taskd_manager_term", term)
        for each in STATES[:-1]:  # without the one of a job that has no manager
            self.put("taskd_job_state", each == state, each)
        counts: dict[Labels, float] = {}
        for kind, n in dropped.items():
            labels = (kind if len(counts) < KINDS else OTHER,)
            counts[labels] = counts.get(labels, 0) + n
        self.put_all("taskd_dropped_messages", counts)

    def agents(self, states: Mapping[str, int]) -> None:
        self.put_all("taskd_agents", {(state,): n for state, n in states.items()})


_PROGRESS = {
    "taskd_step": "step",
    "taskd_step_highest": "highest",
    "taskd_step_end": "total",
    "taskd_step_seconds": "usual",
    "taskd_heartbeat_age_seconds": "heard",
}
_FOLLOW = {
    "start": Figures._start,
    "join": Figures._join,
    "lost": Figures._lose,
    "progress": Figures._progress,
    "fault": Figures._fault,
    "decision": Figures._decision,
    "incident": Figures._incident,
    "replace": Figures._replace,
    "restart": Figures._restart,
    "recovery": Figures._switch,
}
