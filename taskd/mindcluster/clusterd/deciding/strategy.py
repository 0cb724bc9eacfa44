"""The strategy that ClusterD has named for a fault: which ones fit, what is done under the one that
it names, and the report of the result."""

from __future__ import annotations

from taskd.core.advice import Advice
from taskd.core.coordinator import Coordinator
from taskd.core.incident.phases import Phase
from taskd.core.job.ladder import ELASTIC, ENDING
from taskd.mindcluster.clusterd.deciding.elastic import SHRINK, ElasticTraining
from taskd.mindcluster.clusterd.deciding.reports import FAILED, NEXT, OK, Reports

IN_PLACE = "recover-in-place"  # to ClusterD an extra parameter to `recover`
OURS = {"retry": "retry", "recover": "recover", SHRINK: ELASTIC, "dump": "dump", "exit": "exit"}
WORDS = {**{ours: word for word, ours in OURS.items()}, IN_PLACE: "recover"}


class Strategy:
    def __init__(
        self, parts: Coordinator, advice: Advice, reports: Reports, elastic: ElasticTraining
    ) -> None:
        self._job, self._recovery = parts.job, parts.recovery
        self._advice, self._reports, self._elastic = advice, reports, elastic
        # what it has ordered, in its words and ours, and not been told the result of
        self.ordered: tuple[str, str] | None = None

    def forget(self) -> None:
        """ClusterD waits for no result."""
        self.ordered = None
        self._elastic.forget()

    def able(self) -> tuple[str, ...]:
        """Those that fit, in ClusterD's words."""
        words = [WORDS[s] for s in self._advice.able() if s in WORDS]
        return tuple(dict.fromkeys((*words, "exit")))

    def order(self, word: str, ours: str, now: float) -> None:
        """Continue the incident under `ours`. One that is further along is left alone, unless the
        job is to end."""
        self.ordered = word, ours
        if self._job.closing:
            return
        incident = self._recovery.incident
        waits = incident is not None and incident.phase in (Phase.INTERRUPT, Phase.CONSULT)
        if incident is not None and ours == ELASTIC and incident.phase is Phase.RESCHEDULE:
            nodes = self._job.topology.nodes  # no pod has come for one of them
            waits = any(not nodes[n].assignee for n in self._job.topology.lost)
        if ours == "exit" and self._advice.saves:
            self._job.note("ClusterD's exit waits until the state is saved: the job ends then")
            self._recovery.alone("", now)
        elif incident is None:
            if ours in ENDING:
                rungs = ("dump", "exit") if ours == "dump" else ("exit",)
                self._recovery.leave(f"ClusterD orders {ours}", rungs, now)
        elif (waits and incident.moving is None) or ours in ENDING:
            if incident.strategy != ours or incident.consults:
                self._advice.take(ours, f"ClusterD orders {ours}", now)
        else:
            self._job.note(
                f"ClusterD's strategy {ours} comes while {incident.strategy} is under way, which"
                " goes on"
            )

    def result(self, now: float) -> int | None:
        """Report the result, once there is one. Returns its code."""
        if self.ordered is None:
            return None
        word, ours = self.ordered
        job, incident = self._job, self._recovery.incident
        if job.over:
            tried = incident.tried if incident is not None else []
            done = any(t.startswith("dump: done") for t in tried) or ours == "exit"
            return self.report(OK if done else FAILED, tried[-1] if tried else "")
        if (ours == "exit" and self._advice.saves) or self._elastic.stands_in(
            word, ours != IN_PLACE, now
        ):
            return None
        if incident is None or self._elastic.has_shrunk:
            self._elastic.tell_who_leaves(word)
            return self.report(OK)
        if ours in incident.failed or not _may_still(incident.strategy, ours):
            trains_on = ours == "retry" and incident.strategy not in ENDING
            text = f"{ours} has failed or does not fit; {incident.strategy} is under way"
            return self.report(NEXT if trains_on else FAILED, text)
        self._elastic.tell_who_leaves(word)
        return None

    def report(self, code: int, text: str = "") -> int:
        """Report the result of what was ordered."""
        assert self.ordered is not None
        word, _ = self.ordered
        self.ordered = None
        if word != SHRINK or code != OK:
            self._elastic.forget()
        self._reports.report("ReportRecoverStatus", code, text, strategy=word)
        return code


def _may_still(present: str, ours: str) -> bool:
    """Whether the incident, under `present`, still does what was ordered. Every repair satisfies
    `retry`, `recover` and `downgrade`: the job trains on."""
    return present == ours or (present not in ENDING and ours not in ENDING)
