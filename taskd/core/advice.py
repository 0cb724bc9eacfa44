"""An external advisor (ClusterD) that chooses the strategy: the incident waits for it in CONSULT,
then carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from taskd.core import events as e
from taskd.core.incident.machine import Recovery
from taskd.core.incident.phases import Phase
from taskd.core.job import ladder
from taskd.core.job.state import JobState, Part
from taskd.messages.from_rank import OTHER
from taskd.messages.values import Results

if TYPE_CHECKING:
    from taskd.core.coordinator import Coordinator


RUNNING = (Phase.DETECT, Phase.INTERRUPT, Phase.RESUME)
# that an incident waits for: ClusterD takes three steps to its strategy, two of them once more if
# that was `retry` and has failed; the rest is for one that starts over
ANSWERS = 8


class Advisor(Part):
    """May decide in place of the ladder. This base class never does; the Coordinator is given a
    real one."""

    def __init__(self, parts: Coordinator) -> None:
        """`parts`: the coordinator, whose parts the advisor may use."""

    @property
    def on(self) -> bool:
        """Whether there is a connection."""
        return False

    def connected(self, event: e.AdvisorConnected, now: float) -> None: ...

    def signal(self, event: e.AdvisorSignal, now: float) -> None: ...

    def unadvised(self, now: float) -> None:
        """An incident is about to go on without its strategy."""

    def task_done(self, well: bool, text: str, tests: tuple[tuple[int, Results], ...]) -> None:
        """A task that it requested has ended. `tests`: stress test results by rank; empty for a
        switch of network cards."""


class Advice:
    def __init__(self, job: JobState, recovery: Recovery) -> None:
        self._job, self._recovery = job, recovery

    @property
    def stopped(self) -> bool:
        """Whether every rank has left its step, for a repair that has not resumed it yet."""
        return self._recovery.incident is not None and self._recovery.phase not in RUNNING

    @property
    def saves(self) -> bool:
        """Whether the state is saved, or is to be, and the job ends then."""
        incident = self._recovery.incident
        return self._job.leaves or (incident is not None and incident.strategy == "dump")

    def consult(
        self, text: str, now: float, evicted: Mapping[int, str] | None = None, waits: bool = True
    ) -> None:
        """Stop all ranks until the advisor has named a strategy. `evicted`: see Recovery.fault.
        `waits`: false if it has named one, and waits for the result itself."""
        incident = self._recovery.join(text, now=now)
        incident.consults = self._job.repairs and (waits or incident.consults)
        if not incident.rungs:  # `retry`, so that all ranks can go on as they were
            incident.rungs = self._job.settings.with_retry
        if evicted:
            moves = incident.moving is not None
            self._recovery.evict(evicted, now)
            # that has undone the move only; and what the advisor has said once is not found again
            still = {r: why for r, why in evicted.items() if self._job.rank(r).alive}
            if moves and still and not self._job.closing:
                self._recovery.evict(still, now)
        else:
            self._recovery.again(now)

    def heard(self, now: float) -> None:
        """The advisor has taken a step towards its strategy: the next may take as long again."""
        incident = self._recovery.incident
        if incident is not None and incident.consulted is not None and incident.answers < ANSWERS:
            incident.answers += 1
            incident.consulted = now
            if incident.phase is Phase.CONSULT:
                incident.extend(now + self._job.settings.advice)

    def take(self, strategy: str, why: str, now: float) -> None:
        """Continue, or start over, under `strategy`; if it fails, climb to the configured ones that
        cost more. An incident already past it is left alone. `why`: the reason, if the job is
        ordered to end."""
        incident = self._recovery.incident
        assert incident is not None
        order = ladder.STRATEGIES
        if incident.strategy in order:  # not hot-switch
            strategy = max(strategy, incident.strategy, key=order.index)
        costlier = order[order.index(strategy) + 1 :]
        configured = self._job.settings.ladder
        incident.rungs = (strategy, *(s for s in costlier if s in configured))
        if incident.strategy == strategy:
            self._recovery.alone("", now)
            return
        incident.consults = False
        if strategy in ladder.ENDING:
            self._recovery.join(why, now=now)
        self._recovery.again(now)

    def faulty(self) -> tuple[tuple[int, int], ...]:
        """The ranks at fault and the documented types of their faults; also of those that have left
        for it."""
        recovery, incident = self._recovery, self._recovery.incident
        if incident is None:
            return ()
        left = dict.fromkeys(recovery.elastic.lost(incident), OTHER)
        return tuple(sorted({**dict(recovery.rounds.faulty(incident)), **left}.items()))

    def able(self) -> tuple[str, ...]:
        """The strategies that fit the damage, in order of cost."""
        incident, rungs = self._recovery.incident, self._job.settings.ladder
        if incident is not None:
            damage = self._recovery.rounds.damage(incident)
            rungs = tuple(
                s
                for s in incident.rungs or rungs
                if s not in incident.failed and ladder.unfit(s, damage) is None
            )
        if ladder.ELASTIC in rungs and self._recovery.elastic.refusal(incident):
            return tuple(s for s in rungs if s != ladder.ELASTIC)
        return rungs
