"""Handles ClusterD's signals; the theory is in the package's docstring."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.advice import Advice, Advisor
from taskd.core.coordinator import Coordinator
from taskd.core.incident.phases import Phase
from taskd.core.job.ladder import ENDING
from taskd.messages import from_agent
from taskd.messages.from_rank import OTHER
from taskd.messages.values import Results
from taskd.mindcluster.clusterd.deciding.elastic import GROW, ElasticTraining
from taskd.mindcluster.clusterd.deciding.ends import Ends
from taskd.mindcluster.clusterd.deciding.hold import Hold
from taskd.mindcluster.clusterd.deciding.hot_switch import WORD as MIGRATION
from taskd.mindcluster.clusterd.deciding.hot_switch import HotSwitch
from taskd.mindcluster.clusterd.deciding.nodes import Nodes
from taskd.mindcluster.clusterd.deciding.reports import (
    FAILED,
    NEXT,
    NOT_READY,
    OK,
    RESTARTED,
    Owed,
    Reports,
)
from taskd.mindcluster.clusterd.deciding.strategy import IN_PLACE, OURS, Strategy
from taskd.mindcluster.clusterd.deciding.telling import Telling

REMEMBERED = 64  # signals; ClusterD repeats one at most three times
RENAMING = ("pauseStartAgent", "continueStartAgent")  # what is under way has this id from now on
IGNORED = frozenset({"keep-alive", *RENAMING})
# they belong to a fault under way
FOLLOWING = ("globalFault", "changeStrategy", "faultNodesExit")
APART = ("preExitProcess", "killMaster")  # they come in any state, the first with an id of its own


class ClusterD(Advisor):
    def __init__(self, parts: Coordinator) -> None:
        job, self._recovery = parts.job, parts.recovery
        self._job, self._succession, self._pause = job, parts.succession, parts.pause
        self._advice = Advice(job, parts.recovery)
        self._reports = Reports(job, self._advice)
        self._nodes = Nodes(parts, self._advice, self._reports)
        self._telling = Telling(parts, self._advice, self._reports, self._nodes)
        self._hold = Hold(job, parts.pause, parts.finishing)
        self._hot = HotSwitch(job, parts.switch, self._reports)
        self._elastic = ElasticTraining(parts, self._reports, self._nodes)
        self._strategy = Strategy(parts, self._advice, self._reports, self._elastic)
        self._ends = Ends(parts, self._advice, self._reports, self._nodes)
        self._asked = False  # for the connection
        self._formed = False  # all ranks have been protected
        self._on = False
        self._uuid = ""  # of the fault that it handles
        self._trains_on = False  # `stopTrain` was taken for that fault, which had been repaired
        self._seen: deque[e.AdvisorSignal] = deque(maxlen=REMEMBERED)
        self._handlers: dict[str, Callable[[e.AdvisorSignal, float], None]] = {
            "stopTrain": self._stop,
            "globalFault": self._global_fault,
            "changeStrategy": self._change_strategy,
            "saveAndExit": self._save_and_exit,
            "preExitProcess": lambda of, now: self._nodes.end_processes(of, now, self._waits),
            "faultNodesExit": self._elastic.nodes_exit,
            "killMaster": self._ends.kill,
            "hot-switch": self._hot.report,
        }

    # -- the connection ----------------------------------------------------------------------------

    def connected(self, event: e.AdvisorConnected, now: float) -> None:
        """A stream of signals has begun, or the last one has ended and no other begins. ClusterD
        ends it whenever it has handled a fault."""
        if not event.on and not self._on:
            return
        self._on = event.on
        self._job.advised = event.on and self._job.settings.advisor == "follow"
        self._hold.end("ClusterD is gone, or has started over", now)
        self._uuid, self._trains_on = "", False
        self._ends.void("", "")
        self._strategy.forget()
        self._telling.forget()
        self._reports.forget()
        self._hot.forget()
        self._seen.clear()
        # what it has found itself it does not find again
        if not event.on or not self._telling.tell("", now):
            self._recovery.alone(f"ClusterD {'has started over' if event.on else 'is gone'}", now)

    def registered(self, event: from_agent.AgentJoined, now: float) -> None:
        self._nodes.recall(event)

    @property
    def on(self) -> bool:
        """Whether ClusterD is connected."""
        return self._on

    @property
    def deadline(self) -> float | None:
        due = 0.0 if self._nodes.due else self._hold.until
        return min((t for t in (due, self._elastic.deadline) if t is not None), default=None)

    def tick(self, now: float) -> None:
        self._nodes.end(now, self._waits)
        if self._hold.until is not None and now >= self._hold.until:
            self._end_hold("ClusterD has not let them go on in time", now)

    def unadvised(self, now: float) -> None:
        """It names no strategy: nodes whose pods it ends leave, unless the job ends."""
        incident = self._recovery.incident
        if incident is not None and incident.strategy not in ENDING:
            self._nodes.decided(now)

    def _end_hold(self, why: str, now: float) -> None:
        self._reports.owed.discard(Owed.PAUSED)
        self._hold.end(why, now)

    def drop(self, why: str) -> None:
        """All ranks are restarted, and none is where ClusterD believes it to be."""
        self._hold.forget()
        self._reports.restarted = True
        self._nodes.drop()
        if self._elastic.growing:
            self._report_growth(FAILED, RESTARTED)
        self._elastic.forget()
        if not self._on:
            return
        self._ends.void(self._uuid, RESTARTED)
        self._reports.pay(Owed.STOPPED, OK, RESTARTED)
        self._reports.pay(Owed.PAUSED, NOT_READY, RESTARTED)
        self._reports.pay(Owed.ABLE, strategies=("exit",))
        if self._strategy.ordered is not None:
            self._strategy.report(FAILED, RESTARTED)

    def task_done(self, well: bool, text: str, tests: tuple[tuple[int, Results], ...]) -> None:
        if tests:
            self._job.say(c.TellAdvisor("ReplyStressTestResult", int(not well), tests=tests))
        else:
            self._job.say(c.TellAdvisor("ReplySwitchNicResult", int(not well), text))

    # -- signals -----------------------------------------------------------------------------------

    def signal(self, event: e.AdvisorSignal, now: float) -> None:
        if not self._on or event in self._seen:
            return
        if event.uuid:  # a hot switch has none: the next one looks the same
            self._seen.append(event)
        if event.kind in IGNORED:
            if event.kind in RENAMING and event.uuid:
                self._ends.renamed(self._uuid, event.uuid)
                self._uuid = event.uuid
            return
        handler = self._handlers.get(event.kind)
        if handler is None:
            self._job.note(
                f"ClusterD's signal {event.kind!r} is unknown and ignored; known:"
                f" {', '.join((*self._handlers, *sorted(IGNORED)))}"
            )
            return
        present, away = self._job.ranks, self._job.away
        beyond = [r for r, _ in event.ranks if r not in present and r not in away]
        beyond_nodes = [n for n in event.nodes if n not in self._job.topology.nodes]
        if beyond or (beyond_nodes and self._job.protected):
            what = f"ranks [{abbreviate(beyond)}]" if beyond else f"nodes {beyond_nodes}"
            self._job.note(
                f"ClusterD's signal {event.kind} names {what}, which are not in this job"
            )
            return
        apart = event.kind in APART
        of_another = bool(event.uuid) and event.uuid != self._uuid and not apart
        if event.kind in FOLLOWING and self._uuid and of_another:
            self._job.note(
                f"ClusterD's signal {event.kind} ignored: it belongs to {event.uuid[:8]}, but"
                f" {self._uuid[:8]} is being handled"
            )
            return
        if of_another:
            self._uuid = event.uuid
            self._nodes.begin()
            self._reports.named.clear()
        self._nodes.end(now, self._waits)
        self._telling.expire(now)
        strategy = f" {event.strategy}" if event.strategy else ""
        ranks = f", ranks [{abbreviate(r for r, _ in event.ranks)}]" if event.ranks else ""
        nodes = f", nodes {list(event.nodes)}" if event.nodes else ""
        self._job.note(f"ClusterD: {event.kind}{strategy}{ranks}{nodes}")
        if event.kind in FOLLOWING:
            fences = event.strategy == "exit" and self._nodes.condemns(event)
            if self._ends.is_void(event.uuid) and not fences:
                if self._ends.answer(event):
                    self._handled()
                return
            self._nodes.named(event)
        if event.kind in ("stopTrain", *FOLLOWING):
            self._reports.hears(event)
            self._advice.heard(now)
        handler(event, now)

    def _stop(self, event: e.AdvisorSignal, now: float) -> None:
        self._reports.owed.clear()
        self._strategy.forget()
        self._trains_on = False
        told, phase = self._reports.taken_up(now), self._recovery.phase
        pauses = "pause_train" in event.actions
        if not pauses:
            self._end_hold("ClusterD stops the training", now)
        if told and self._reports.restarted or self._restarts:  # meanwhile
            self._ends.void(event.uuid, RESTARTED)
            self._reports.send(Owed.STOPPED, OK, RESTARTED)
        elif not self._job.protected:
            self._reports.send(
                Owed.STOPPED, NOT_READY, "not every rank has begun its protected loop"
            )
        elif pauses:
            self._reports.owed.add(Owed.PAUSED)
            self._hold.begin(event.timeout, now)
        elif told and phase in (None, Phase.RESUME):  # the ranks are not stopped once more for it
            self._trains_on = True
            self._reports.send(Owed.STOPPED, OK, "it is repaired, and training goes on")
        elif told and self._telling.beside and self._reports.knows(event):
            self._trains_on = True
            self._reports.repeat(event)
            self._reports.send(Owed.STOPPED, OK, "it is being repaired")
        else:
            self._reports.repeat(event)
            self._reports.owed.add(Owed.STOPPED)
            self._have_stopped(now)

    def _have_stopped(self, now: float) -> None:
        incident = self._recovery.incident
        if incident is not None and incident.phase in (Phase.INTERRUPT, Phase.CONSULT):
            incident.consults = self._job.repairs
        elif not self._advice.stopped:
            self._advice.consult("ClusterD stops the training", now)
        self._telling.begun()

    def _global_fault(self, event: e.AdvisorSignal, now: float) -> None:
        if not self._job.protected:
            return
        if "fault_nodes_exit" in event.actions:
            self._nodes.will_leave(event)
            if self._recovery.incident is None:  # the others have their state, and train
                self._nodes.decided(now)
        self._reports.owed.add(Owed.ABLE)
        if self._job.closing:
            return
        known = self._nodes.known(now)
        if (incident := self._recovery.incident) is not None:
            over = self._reports.stale(now) - self._nodes.at_fault
            incident.kinds.update({r: k for r, k in event.ranks if k != OTHER and r not in over})
        present = self._job.ranks  # the others do not train
        news = {r: kind for r, kind in event.ranks if r not in known and r in present}
        leaving = self._nodes.leaving
        gone = {
            r: "ClusterD reports a fault of its device or process"
            for r, kind in news.items()
            if kind == OTHER and present[r].alive and r not in leaving
        }
        text = f"ClusterD reports a fault of ranks [{abbreviate(sorted(gone or news))}]"
        if gone or (news and self._trains_on):
            self._advice.consult(text, now, gone)
            self._telling.begun()
        self._trains_on = False

    @property
    def _restarts(self) -> bool:
        """Whether all ranks start again, in place of what ClusterD would have them do."""
        return self._formed and not self._job.protected

    @property
    def _waits(self) -> bool:
        """Whether an incident may wait for ClusterD, which does not wait itself."""
        return self._strategy.ordered is None and not self._awaits

    @property
    def _awaits(self) -> str:
        """What ClusterD waits for beside the result of a strategy."""
        if self._hold.until is not None:
            return "paused ranks"
        return "the job to grow" if self._elastic.growing else ""

    def _save_and_exit(self, event: e.AdvisorSignal, now: float) -> None:
        self._end_hold("ClusterD ends the job", now)
        self._strategy.ordered = "dump", "dump"
        self._recovery.leave("ClusterD ends the job", ("dump", "exit"), now)

    # -- the strategy ------------------------------------------------------------------------------

    def _change_strategy(self, event: e.AdvisorSignal, now: float) -> None:
        word = event.strategy
        self._reports.owed -= {Owed.STOPPED, Owed.ABLE}
        self._end_hold("" if word == "continue" else f"ClusterD names the strategy {word}", now)
        if word == "continue":
            self._reports.report("ReportRecoverStatus", OK, "", strategy=word)
            self._handled()
        elif why := self._ends.pointless(event, now):
            self._ends.void(event.uuid, why)
            if self._ends.answer(event):
                self._handled()
            self._ends.go_on(word, now)
        elif word == MIGRATION:
            self._hot.migrate()
        elif refusal := self._refusal(event):
            self._job.note(f"ClusterD's strategy is refused: {refusal}")
            if word == GROW and self._job.away:
                self._report_growth(FAILED, refusal)
            else:
                self._reports.report("ReportRecoverStatus", FAILED, refusal, strategy=word)
        elif word == GROW:
            self._elastic.grows(now)
        else:
            ours = IN_PLACE if event.extra == IN_PLACE else OURS[word]
            ends = ours == "exit" and not self._job.closing and not self._advice.saves
            if ends and (done := self._nodes.replace(event, now)):
                self._reports.report("ReportRecoverStatus", OK, done, strategy=word)
                return
            self._elastic.ordered(word)
            if ours in ENDING:
                self._nodes.stay()
            else:
                self._nodes.decided(now)
            if ours == "recover":
                self._nodes.leave(event, now)
            self._strategy.order(word, ours, now)

    def _refusal(self, event: e.AdvisorSignal) -> str:
        if event.strategy not in (words := (*OURS, GROW)):
            return f"taskd cannot do {event.strategy!r}; it can {', '.join(words)}"
        return self._elastic.refusal(event)

    # -- after each event --------------------------------------------------------------------------

    def follow_up(self, now: float) -> None:
        """Send the reports that ClusterD waits for, as soon as their conditions hold."""
        job = self._job
        if not self._asked and self._registers():
            self._asked = True
            job.say(c.ConnectAdvisor())
        if not self._on:
            return
        if not job.over:
            self._telling.tell(self._awaits, now)
        incident = self._recovery.incident
        if job.over:
            self._reports.owed.clear()
        elif Owed.STOPPED in self._reports.owed and incident is None:
            self._have_stopped(now)
        self._formed |= job.protected
        if incident is None:
            self._nodes.stay()
        self._nodes.leave_later(now)
        if self._advice.stopped:
            self._reports.pay(Owed.STOPPED)
        # looked at after every event: what fits is a scan of all ranks
        if Owed.ABLE in self._reports.owed and (self._advice.stopped or incident is None):
            self._reports.pay(Owed.ABLE, strategies=self._strategy.able())
        if Owed.PAUSED in self._reports.owed and self._pause.all_paused:
            self._reports.pay(Owed.PAUSED)
        self._hot.follow_up()
        self._elastic.follow_up(now)
        self._result(now)

    def _registers(self) -> bool:
        """Whether to connect: a manager that is still taking over could only answer that its ranks
        are not ready, upon which ClusterD ends the job."""
        job = self._job
        knows = bool(job.topology.nodes) and self._succession.deadline is None
        return job.settings.advisor != "off" and job.election.in_charge and knows

    def _result(self, now: float) -> None:
        """Report the result of what was ordered, once there is one."""
        code = self._strategy.result(now)
        if code == OK:
            self._handled()
        elif code == NEXT:  # it asks once more which strategies fit, in the same words
            self._seen = deque((s for s in self._seen if s.kind != "globalFault"), REMEMBERED)
        if (grown := self._elastic.grown(now)) is not None:
            self._report_growth(*grown)

    def _report_growth(self, code: int, text: str) -> None:
        """ClusterD has a job end that has not grown, which trains on instead."""
        self._elastic.forget()
        if code == OK:
            self._handled()
        else:
            self._ends.void(self._uuid, text)
        self._reports.report("ReportRecoverStatus", code, text, strategy=GROW)

    def _handled(self) -> None:
        """ClusterD has handled the fault."""
        self._uuid = ""
        self._reports.handled(self._nodes.condemned)
