"""The metrics of a manager: prometheus_client's own, changed by the manager's loop, and written by
another thread.

The number of series is bounded, whatever happens to the job and whatever its agents report: a label
has one of a few known values, or OTHER; nodes are counted one by one up to NODES, and ranks are
named while they are among the slowest.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from taskd.core.incident.phases import FINAL, Phase
from taskd.core.job.ladder import ENDING, MOVES, STRATEGIES
from taskd.core.overview import STATES
from taskd.history.facts import ENDED, REPAIRED, RESTARTED, Incident, Sample
from taskd.history.model import Job
from taskd.history.reading import Record
from taskd.messages.node_progress import PHASES
from taskd.messages.to_operator import WORST

OTHER, NONE = "other", "none"
NODES = 50  # that are counted one by one
KINDS = 30  # of dropped messages; taskd has a dozen
UNSEEN = "unseen"  # of ranks: no heartbeat of their node is known
AWAY = "away"  # of ranks: others stand in for them
RESULTS = (REPAIRED, RESTARTED, ENDED)
# A repair on one node takes some 100 ms, one with a new node seconds to minutes, and 270 s is what
# a job waits for a standby by default.
REPAIR = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
# A message takes some 50 us, and a turn reads up to 1000; a second is what other limits allow for.
TURN = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

# or each counter has another series, with the time of its beginning
disable_created_metrics()  # type: ignore[no-untyped-call]


class Figures:
    """`ladder`: of the job. Metrics of incidents exist before the first one: a series that appears
    with its first event has no rate for it. Those of progress appear once it is known."""

    def __init__(self, ladder: Collection[str]) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, meaning: str, *labels: str) -> Counter:
            return Counter(f"taskd_{name}", meaning, labels, registry=registry)

        def gauge(name: str, meaning: str, *labels: str) -> Gauge:
            return Gauge(f"taskd_{name}", meaning, labels, registry=registry)

        def histogram(
            name: str, meaning: str, buckets: Collection[float], *labels: str
        ) -> Histogram:
            return Histogram(
                f"taskd_{name}", meaning, labels, registry=registry, buckets=tuple(buckets)
            )

        self._build = gauge("build_info", "1; the version of taskd", "version")
        self._job = gauge("job_info", "1; the job's name", "name")
        self._start = gauge("manager_start_timestamp_seconds", "when this manager began")
        self._term = gauge("manager_term", "term of this manager, 1 for the first of a job")
        self._turn = histogram(
            "manager_loop_seconds",
            "time of a turn of the manager's loop, without the wait for messages",
            TURN,
        )
        self._dropped = counter("dropped_messages", "messages that were not accepted", "kind")
        self._state = gauge("job_state", "1 for the state of the job, 0 for the others", "state")
        self._agents = gauge("agents", "nodes by what their agents do, and standbys", "state")
        self._ranks = gauge("ranks", "ranks by phase, as the last heartbeats had it", "state")
        self._training = gauge("training_ranks", "ranks that the job trains with")
        self._away = gauge("away_ranks", "ranks that are away: others stand in for them")
        self._shares = gauge("step_shares", "how many times as long a step takes at most")
        self._progress = [
            Gauge(f"taskd_{name}", meaning, registry=None)
            for name, meaning in (
                ("heartbeat_age_seconds", "age of the oldest heartbeat of a node"),
                ("step", "the step that every rank has come to"),
                ("step_highest", "the highest step that a rank has come to"),
                ("step_end", "the step before which the loop ends, 0 if not known"),
                ("step_seconds", "time that an attempt usually takes the median rank"),
                ("steps_per_second", "steps lately, over a minute"),
                ("records_bytes", "memory that the records of a node take, where most"),
            )
        ]
        self._advanced = False
        self._slow = gauge(
            "slow_rank_seconds", "that time, of the slowest ranks, at most 10", "rank", "node"
        )
        self._spent = counter("spent_seconds", "what the time of the job went to", "activity")
        self._goodput = gauge("goodput_ratio", "share of that time that was training")
        self._repairs = gauge("repairs_enabled", "1 if faults are repaired, 0 while that is paused")
        self._faults = counter("faults", "faults, of which an incident may have several")
        self._incidents = counter("incidents", "incidents that are over", "strategy", "result")
        self._took = histogram("incident_seconds", "duration of an incident", REPAIR, "result")
        self._phases = histogram("phase_seconds", "time of an incident in a phase", REPAIR, "phase")
        self._began = gauge(
            "incident_began_timestamp_seconds", "when the incident under way began, 0: none"
        )
        self._left = gauge(
            "ladder_strategies_left", "strategies that could still repair after this one"
        )
        self._hit = counter(
            "node_incidents", "incidents in which a node or a rank of it was lost", "node"
        )
        self._replaced = counter("replaced_ranks", "processes of ranks that were replaced")
        self._lost = counter("lost_nodes", "nodes that were lost")
        self._restarts = counter("restarts", "restarts of all ranks")
        self._notices = counter(
            "notices", "notices by what became of them (TASKD_NOTIFY)", "result"
        )
        for result in RESULTS:
            self._took.labels(result)
            for strategy in ladder:
                self._incidents.labels(strategy, result)
        for phase in Phase:
            if phase not in FINAL:
                self._phases.labels(phase.value)
        self._repairing = [s for s in ladder if s not in ENDING]
        self._known: set[int] = set()  # nodes that are counted one by one
        self._slowest: set[tuple[int, int]] = set()
        self._totals: dict[tuple[Counter, str], float] = {}  # counted elsewhere, as last seen
        self.turn = self._turn.observe  # seconds of a turn of the manager's loop
        self._repairs.set(1)
        self._under_way(None)

    def text(self, openmetrics: bool) -> tuple[bytes, str]:
        """The metrics, and their content type."""
        encode, content_type = choose_encoder(OPENMETRICS if openmetrics else "")
        return encode(self.registry), content_type

    # -- what the journal says ---------------------------------------------------------------------

    def count(self, record: Record, job: Job) -> None:
        """Count an entry that `job` has processed."""
        if record.kind == "start":
            self._build.labels(job.version).set(1)
            self._job.labels(job.name).set(1)
            self._start.set(record.time)
        elif record.kind == "progress":
            self._advance(job.samples[-1], job)
        elif record.kind == "incident":
            self._over(job.incidents[-1], job)
        elif record.kind == "recovery":
            self._repairs.set(job.repairs)
        else:
            counter = {
                "fault": self._faults,
                "lost": self._lost,
                "replace": self._replaced,
                "restart": self._restarts,
            }.get(record.kind)
            if counter is not None:
                counter.inc()
        if record.kind in ("start", "elastic", "restart"):
            self._resize(job)
        self._under_way(job.open)

    def _resize(self, job: Job) -> None:
        shrunk = job.shrunk
        self._training.set(job.ranks if shrunk is None else shrunk.ranks)
        self._away.set(_away(job))
        self._shares.set(1 if shrunk is None else shrunk.shares)

    def _advance(self, sample: Sample, job: Job) -> None:
        values = (
            sample.heard,
            sample.step,
            sample.highest,
            sample.total,
            sample.usual,
            sample.rate / 60.0,
            sample.memory,
        )
        for gauge, value in zip(self._progress, values, strict=True):
            gauge.set(value)
            if not self._advanced:
                self.registry.register(gauge)
        self._advanced = True
        phases = dict.fromkeys((*PHASES, OTHER), 0)
        for phase, number in sample.phases.items():
            phases[phase if phase in PHASES else OTHER] += number
        phases[AWAY] = _away(job)
        phases[UNSEEN] = max(job.ranks - sum(phases.values()), 0)
        for phase, number in phases.items():
            self._ranks.labels(phase).set(number)
        slow = {(rank, node): seconds for rank, node, seconds in sample.slow[:WORST]}
        for known in self._slowest - slow.keys():
            self._slow.remove(*known)
        for (rank, node), seconds in slow.items():
            self._slow.labels(rank, node).set(seconds)
        self._slowest = set(slow)

    def _over(self, incident: Incident, job: Job) -> None:
        strategy = incident.strategy or NONE
        known = (*STRATEGIES, *MOVES, NONE)
        result = incident.result if incident.result in RESULTS else OTHER
        self._incidents.labels(strategy if strategy in known else OTHER, result).inc()
        self._took.labels(result).observe(incident.seconds)
        for phase, seconds in incident.phases.items():
            phase = phase if phase in Phase.__members__ else OTHER
            self._phases.labels(phase).observe(seconds)
        hit = incident.lost | {job.places.of(rank)[0] for rank in incident.replaced}
        for node in sorted(hit - {-1}):
            if len(self._known) < NODES:
                self._known.add(node)
            self._hit.labels(node if node in self._known else OTHER).inc()

    def _under_way(self, incident: Incident | None) -> None:
        self._began.set(0 if incident is None else incident.began)
        strategy, repairing = "" if incident is None else incident.strategy, self._repairing
        if strategy in ENDING:
            left = 0
        elif strategy in repairing:
            left = len(repairing) - 1 - repairing.index(strategy)
        else:  # none yet, or nodes move: what follows is an ordinary fault
            left = len(repairing)
        self._left.set(left)

    # -- what the manager looks up about once a second ---------------------------------------------

    def update(self, job: Job, state: str, term: int, dropped: Mapping[str, int]) -> None:
        for kind, seconds in job.spent.seconds.items():
            self._count(self._spent, kind, seconds)
        self._goodput.set(job.spent.goodput)
        self._term.set(term)
        for each in STATES[:-1]:  # without the one of a job that has no manager
            self._state.labels(each).set(each == state)
        counts: dict[str, float] = {}
        for kind, number in dropped.items():
            label = kind if len(counts) < KINDS else OTHER
            counts[label] = counts.get(label, 0) + number
        for kind, total in counts.items():
            self._count(self._dropped, kind, total)

    def notices(self, results: Mapping[str, int]) -> None:
        for result, number in results.items():
            self._count(self._notices, result, number)

    def agents(self, states: Mapping[str, int]) -> None:
        for state, number in states.items():
            self._agents.labels(state).set(number)

    def _count(self, counter: Counter, label: str, total: float) -> None:
        """Raise the counter to a total kept elsewhere. Time moved to an incident once its fault is
        known was counted under another activity, whose counter waits until its total has caught
        up."""
        more = total - self._totals.get((counter, label), 0.0)
        child = counter.labels(label)
        if more > 0:
            child.inc(more)
            self._totals[counter, label] = total


def _away(job: Job) -> int:
    return 0 if job.shrunk is None else job.shrunk.of - job.shrunk.ranks
