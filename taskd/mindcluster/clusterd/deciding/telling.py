"""Which faults are reported to ClusterD: that processes on hardware that it has condemned are gone;
each fault, if it decides; otherwise one that needs a node, but not while it waits for pods to have
a shrunk job grow: it would end that job, which can train on with fewer still.

A manager that most agents do not reach tells nothing: they may train under one of their own, and
ClusterD would end their pods."""

from __future__ import annotations

from taskd.core.advice import Advice
from taskd.core.coordinator import Coordinator
from taskd.core.incident.phases import Phase
from taskd.core.incident.state import Incident
from taskd.messages.from_rank import OTHER
from taskd.mindcluster.clusterd.deciding.nodes import Nodes
from taskd.mindcluster.clusterd.deciding.reports import Reports


class Telling:
    def __init__(self, parts: Coordinator, advice: Advice, reports: Reports, nodes: Nodes) -> None:
        self._job, self._recovery = parts.job, parts.recovery
        self._growth = parts.growth
        self._advice, self._reports, self._nodes = advice, reports, nodes
        self._looked: tuple[int, int, int, bool] | None = None  # what was last looked at
        self._consulted = 0  # the number of the last incident that waits, or has waited, for it
        self._begun = 0  # that of the last one that ClusterD has begun
        self._incident: Incident | None = None  # when it was last looked at

    def forget(self) -> None:
        """ClusterD begins anew, and once more gets what is not repaired."""
        self._looked, self._begun = None, 0

    def expire(self, now: float) -> None:
        incident = self._recovery.incident
        self._reports.expire(incident.began if incident is not None else now)

    @property
    def beside(self) -> bool:
        """Whether the fault under repair is repaired beside ClusterD's handling of it: it costs no
        process, or this manager decides, and needs no node for it."""
        incident, faulty = self._recovery.incident, dict(self._advice.faulty())
        if incident is None or OTHER not in faulty.values():
            return bool(faulty)
        decides = not self._job.advised and not self._nodes.condemned
        return decides and not self._needs(incident)

    def _needs(self, incident: Incident) -> bool:
        """Whether a node is waited for that ClusterD can bring."""
        return incident.timeline.has(Phase.RESCHEDULE) and not self._growth.held

    def begun(self) -> None:
        """ClusterD has begun the incident, or has it wait."""
        if (incident := self._recovery.incident) is not None:
            self._begun = incident.number

    def tell(self, awaits: str, now: float) -> bool:
        """Report what ClusterD does not know of. `awaits`: what it waits for, and begins nothing
        before. Returns whether there is a fault that it begins to handle, or handles."""
        self.expire(now)
        incident, faults = self._recovery.incident, self._nodes.condemned
        if incident is not self._incident and self._incident is not None:
            had = {*self._incident.replaced, *self._incident.kinds}
            self._reports.repaired(had - faults.keys(), now)
        if incident is None or incident is not self._incident:
            self._reports.spare_none()
        self._incident = incident
        if incident is None:
            self._reports.handled(faults)
        elif incident.rounds and incident.moving is None:
            needs = self._needs(incident)
            at = incident.number, len(incident.faults), incident.rounds, needs
            if at != self._looked:  # which ranks are at fault is a scan of all
                self._looked = at
                faults = self._look(incident, awaits, needs, now) | faults
        if faults:
            self._reports.fault(faults, now)
        return OTHER in faults.values()

    def _spared(self, rank: int) -> bool:
        """Whether the rank is starting on a node that had been replaced when ClusterD began anew:
        a report would have the new pod replaced."""
        node, state = self._job.topology.node_of(rank), self._job.ranks.get(rank)
        return node in self._reports.spared and state is not None and state.alive

    def _look(self, incident: Incident, awaits: str, needs: bool, now: float) -> dict[int, int]:
        """The faults at present. ClusterD begins nothing as long as each process is there: a fault
        of memory or of a link concerns it only if the device reports that too. Nor does it while it
        waits for paused ranks, or for the job to grow. So nothing waits for its strategy then; if
        it begins nevertheless, that is as for a fault that it has found."""
        if self._job.outnumbered:
            self._looked = None
            return {}
        faulty = {r: kind for r, kind in self._advice.faulty() if not self._spared(r)}
        begun = incident.number == self._begun and not awaits
        if not self._job.advised and not needs:
            # its own filter finds those of devices later, and would end their pods; and where it is
            # told of a part, or what was a fault of memory is one of a process by now, it ends jobs
            told = self._reports.told
            concerned = any(k != OTHER or told.get(r, k) != k for r, k in faulty.items())
            return faulty if concerned and not self._growth.held else {}
        if not self._job.advised or begun:
            return faulty
        if awaits:
            self._recovery.alone(f"ClusterD waits for {awaits}", now)
        elif OTHER not in faulty.values():
            self._recovery.alone("ClusterD begins nothing while all processes are there", now)
        elif incident.number != self._consulted:
            self._consulted = incident.number
            if incident.phase is Phase.INTERRUPT and not incident.rungs:
                incident.consults = True
        return faulty
