"""Handles ClusterD's signals; the theory is in the package's docstring."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.advice import Advice, Advisor
from taskd.core.incident.ladder import ENDING
from taskd.core.incident.phases import Phase
from taskd.messages.from_rank import OTHER
from taskd.messages.values import Results
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
from taskd.mindcluster.clusterd.deciding.telling import Telling

if TYPE_CHECKING:
    from taskd.core.coordinator import Coordinator

# its strategies that taskd has; `recover-in-place` is an extra parameter to `recover`
IN_PLACE = "recover-in-place"
STRATEGIES = ("retry", "recover", "dump", "exit")
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
        self._asked = False  # for the connection
        self._on = False
        self._uuid = ""  # of the fault that it handles
        self._void = ""  # of the fault under which all ranks were restarted
        self._trains_on = False  # `stopTrain` was taken for that fault, which had been repaired
        self._seen: deque[e.AdvisorSignal] = deque(maxlen=REMEMBERED)
        # what it has ordered, in its words and ours, and not been told the result of
        self._ordered: tuple[str, str] | None = None
        self._handlers: dict[str, Callable[[e.AdvisorSignal, float], None]] = {
            "stopTrain": self._stop,
            "globalFault": self._global_fault,
            "changeStrategy": self._change_strategy,
            "saveAndExit": self._save_and_exit,
            "preExitProcess": self._end_processes,
            "faultNodesExit": self._nodes.leave,
            "killMaster": self._kill,
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
        self._uuid, self._void, self._ordered, self._trains_on = "", "", None, False
        self._telling.forget()
        self._reports.forget()
        self._hot.forget()
        self._seen.clear()
        # what it has found itself it does not find again
        if not event.on or not self._telling.tell(False, now):
            self._recovery.alone(f"ClusterD {'has started over' if event.on else 'is gone'}", now)

    @property
    def on(self) -> bool:
        """Whether ClusterD is connected."""
        return self._on

    @property
    def deadline(self) -> float | None:
        return 0.0 if self._nodes.due else self._hold.until

    def tick(self, now: float) -> None:
        self._nodes.end(now, self._waits)
        if self._hold.until is not None and now >= self._hold.until:
            self._end_hold("ClusterD has not let them go on in time", now)

    def _end_hold(self, why: str, now: float) -> None:
        self._reports.owed.discard(Owed.PAUSED)
        self._hold.end(why, now)

    def drop(self, why: str) -> None:
        """All ranks are restarted, and none is where ClusterD believes it to be."""
        self._hold.forget()
        self._reports.restarted = True
        self._nodes.drop()
        if not self._on:
            return
        self._void = self._uuid
        self._reports.pay(Owed.STOPPED, OK, RESTARTED)
        self._reports.pay(Owed.PAUSED, NOT_READY, RESTARTED)
        self._reports.pay(Owed.ABLE, strategies=("exit",))
        if self._ordered is not None:
            self._report(FAILED, RESTARTED)

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
                if self._uuid and self._void == self._uuid:
                    self._void = event.uuid
                self._uuid = event.uuid
            return
        handler = self._handlers.get(event.kind)
        if handler is None:
            self._job.note(
                f"ClusterD's signal {event.kind!r} is unknown and ignored; known:"
                f" {', '.join((*self._handlers, *sorted(IGNORED)))}"
            )
            return
        beyond = [r for r, _ in event.ranks if r not in self._job.ranks]
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
        self._nodes.end(now, self._waits)
        self._telling.expire(now)
        strategy = f" {event.strategy}" if event.strategy else ""
        ranks = f", ranks [{abbreviate(r for r, _ in event.ranks)}]" if event.ranks else ""
        nodes = f", nodes {list(event.nodes)}" if event.nodes else ""
        self._job.note(f"ClusterD: {event.kind}{strategy}{ranks}{nodes}")
        if event.kind in FOLLOWING:
            fences = event.strategy == "exit" and self._nodes.condemns(event)
            if event.uuid and event.uuid == self._void and not fences:
                self._answer(event)
                return
            self._nodes.named(event)
        if event.kind in ("stopTrain", *FOLLOWING):
            self._reports.hears(event)
            self._advice.heard(now)
        handler(event, now)

    def _answer(self, event: e.AdvisorSignal) -> None:
        """Answer ClusterD's orders about a fault after which all ranks were restarted: ending or
        saving the fresh job would be pointless."""
        if event.kind == "globalFault":
            self._reports.send(Owed.ABLE, OK, RESTARTED, ("exit",))
            return
        code = OK if event.strategy in ("exit", "continue") else FAILED
        self._job.note(f"ClusterD's strategy {event.strategy} is not carried out: {RESTARTED}")
        self._reports.report("ReportRecoverStatus", code, RESTARTED, strategy=event.strategy)
        if code == OK:
            self._handled()

    def _stop(self, event: e.AdvisorSignal, now: float) -> None:
        self._reports.owed.clear()
        self._ordered = None
        self._trains_on = False
        told, phase = self._reports.taken_up(now), self._recovery.phase
        pauses = "pause_train" in event.actions
        if not pauses:
            self._end_hold("ClusterD stops the training", now)
        if told and self._reports.restarted:  # meanwhile
            self._void = event.uuid
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
        else:
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
            self._nodes.leave(event, now)
        self._reports.owed.add(Owed.ABLE)
        if self._job.closing:
            return
        incident = self._recovery.incident
        if incident is not None:
            incident.kinds.update({r: kind for r, kind in event.ranks if kind != OTHER})
        known = self._known()
        news = {r: kind for r, kind in event.ranks if r not in known}
        gone = {
            r: "ClusterD reports a fault of its device or process"
            for r, kind in news.items()
            if kind == OTHER and self._job.ranks[r].alive
        }
        text = f"ClusterD reports a fault of ranks [{abbreviate(sorted(gone or news))}]"
        if gone or (news and self._trains_on):
            self._advice.consult(text, now, gone)
            self._telling.begun()
        self._trains_on = False

    def _known(self) -> set[int]:
        """The ranks whose fault is handled already."""
        incident = self._recovery.incident
        return self._reports.known | (set(incident.replaced) if incident is not None else set())

    def _end_processes(self, event: e.AdvisorSignal, now: float) -> None:
        self._nodes.end_processes(event, now, self._waits)

    @property
    def _waits(self) -> bool:
        """Whether an incident may wait for ClusterD, which does not wait itself."""
        return self._ordered is None and self._hold.until is None

    def _save_and_exit(self, event: e.AdvisorSignal, now: float) -> None:
        self._end_hold("ClusterD ends the job", now)
        self._ordered = "dump", "dump"
        self._recovery.leave("ClusterD ends the job", ("dump", "exit"), now)

    def _kill(self, event: e.AdvisorSignal, now: float) -> None:
        self._job.give_up("ClusterD orders it, and schedules it again (killMaster)")

    # -- the strategy ------------------------------------------------------------------------------

    def _change_strategy(self, event: e.AdvisorSignal, now: float) -> None:
        word = event.strategy
        self._reports.owed -= {Owed.STOPPED, Owed.ABLE}
        self._end_hold("" if word == "continue" else f"ClusterD names the strategy {word}", now)
        if word == "continue":
            self._reports.report("ReportRecoverStatus", OK, "", strategy=word)
            self._handled()
        elif word == MIGRATION:
            self._hot.migrate()
        elif word not in STRATEGIES:
            text = f"taskd cannot do {word!r}; it can {', '.join(STRATEGIES)}"
            self._job.note(f"ClusterD's strategy is refused: {text}")
            self._reports.report("ReportRecoverStatus", FAILED, text, strategy=word)
        else:
            ours = IN_PLACE if event.extra == IN_PLACE else word
            ends = ours == "exit" and not self._job.closing and not self._advice.saves
            if ends and (done := self._nodes.replace(event, now)):
                self._reports.report("ReportRecoverStatus", OK, done, strategy=word)
                return
            self._ordered = word, ours
            if ours == "recover":
                self._nodes.leave(event, now)
            if not self._job.closing:
                self._order(ours, now)

    def _order(self, ours: str, now: float) -> None:
        """Continue the incident under `ours`. One that is further along is left alone, unless the
        job is to end."""
        incident = self._recovery.incident
        waits = incident is not None and incident.phase in (Phase.INTERRUPT, Phase.CONSULT)
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
            self._telling.tell(self._hold.until is not None, now)
        incident = self._recovery.incident
        if job.over:
            self._reports.owed.clear()
        elif Owed.STOPPED in self._reports.owed and incident is None:
            self._have_stopped(now)
        if self._advice.stopped:
            self._reports.pay(Owed.STOPPED)
        # looked at after every event: what fits is a scan of all ranks
        if Owed.ABLE in self._reports.owed and (self._advice.stopped or incident is None):
            self._reports.pay(Owed.ABLE, strategies=self._able())
        if Owed.PAUSED in self._reports.owed and self._pause.all_paused:
            self._reports.pay(Owed.PAUSED)
        self._hot.follow_up()
        if self._ordered is not None:
            self._result(*self._ordered)

    def _registers(self) -> bool:
        """Whether to connect: a manager that is still taking over could only answer that its ranks
        are not ready, upon which ClusterD ends the job."""
        job = self._job
        knows = bool(job.topology.nodes) and self._succession.deadline is None
        return job.settings.advisor != "off" and job.election.in_charge and knows

    def _able(self) -> tuple[str, ...]:
        """In ClusterD's words."""
        words = [s.removesuffix("-in-place") for s in self._advice.able()]
        return tuple(dict.fromkeys(w for w in (*words, "exit") if w in STRATEGIES))

    def _result(self, word: str, ours: str) -> None:
        incident = self._recovery.incident
        if self._job.over:
            done = incident is not None and any(t.startswith("dump: done") for t in incident.tried)
            text = incident.tried[-1] if incident is not None and incident.tried else ""
            self._report(OK if done or ours == "exit" else FAILED, text)
        elif ours == "exit" and self._advice.saves:
            return
        elif incident is None:
            self._report(OK)
            self._handled()
        elif ours in incident.failed or not self._may_still(incident.strategy, ours):
            trains_on = ours == "retry" and incident.strategy not in ENDING
            text = f"{ours} has failed or does not fit; {incident.strategy} is under way"
            self._report(NEXT if trains_on else FAILED, text)
            if trains_on:  # it asks once more which strategies fit, in the same words
                for signal in [s for s in self._seen if s.kind == "globalFault"]:
                    self._seen.remove(signal)

    def _report(self, code: int, text: str = "") -> None:
        """Report the result of what was ordered."""
        assert self._ordered is not None
        word, _ = self._ordered
        self._ordered = None
        self._reports.report("ReportRecoverStatus", code, text, strategy=word)

    def _handled(self) -> None:
        """ClusterD has handled the fault."""
        self._uuid = ""
        self._reports.handled(self._nodes.condemned)

    def _may_still(self, present: str, ours: str) -> bool:
        """Whether the incident, under `present`, still does what was ordered. Every repair
        satisfies `retry` and `recover`: the job trains on."""
        return present == ours or (present not in ENDING and ours not in ENDING)
