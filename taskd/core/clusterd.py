"""Decides together with ClusterD, the cluster's fault center: what it is told, and what its signals
cause. Its interface is in taskd/mindcluster/clusterd.

ClusterD handles one fault at a time, under one uuid: it has all ranks stopped (`stopTrain`), says
which ranks are at fault (`globalFault`), asks which strategies fit, names one (`changeStrategy`)
and waits for the result. Each of these is an incident of ours: stopped is after INTERRUPT, and the
phase CONSULT waits for the strategy, which the ladder then carries out. ClusterD's answer may take
minutes; after `Settings.advice` seconds the incident goes on as the ladder has it.

Who decides. ClusterD decides about every fault that it finds itself: of devices, nodes and pods,
which no process can see. About a fault that a rank or an agent has found, this manager decides at
once, and tells ClusterD only of one that needs a node (`lead`), since the repair of a process takes
less time than ClusterD's first answer; or, under `follow`, ClusterD decides about these too. Its
orders to save or to end count in any case, at any time.

A signal that comes twice counts once. One of an earlier uuid is late, and ignored: ClusterD begins
anew after a broken connection, and so does this.
"""

from __future__ import annotations

from collections import deque

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.clusterd_reports import FAILED, NOT_READY, OK, Owed, Reports
from taskd.core.finishing import Finishing
from taskd.core.incident.advice import Advice
from taskd.core.incident.driver import Recovery
from taskd.core.incident.ladder import ENDING
from taskd.core.incident.phases import Phase
from taskd.core.pause import CLUSTERD, Pause
from taskd.core.state import JobState
from taskd.core.switch import Switch
from taskd.messages import from_operator, to_agent
from taskd.messages.from_rank import OTHER

# its strategies that taskd has; `recover-in-place` is an extra parameter to `recover`
IN_PLACE = "recover-in-place"
STRATEGIES = ("retry", "recover", "dump", "exit")
PAUSE_SECONDS = 600.0  # that its pause lasts if it does not say, as documented
REMEMBERED = 64  # signals; ClusterD repeats one at most three times
IGNORED = frozenset({"keep-alive", "pauseStartAgent", "continueStartAgent"})


class ClusterD:
    """See the module docstring. `signal` and `connected` take events, `look` follows each of any
    kind."""

    def __init__(
        self,
        job: JobState,
        recovery: Recovery,
        pause: Pause,
        switch: Switch,
        finishing: Finishing,
    ) -> None:
        self._job, self._recovery = job, recovery
        self._pause, self._switch, self._finishing = pause, switch, finishing
        self._advice = Advice(job, recovery)
        self._reports = Reports(job, self._advice)
        self._asked = False  # for the connection
        self._on = False
        self._uuid = ""  # of the fault that it handles
        self._seen: deque[e.ClusterSignal] = deque(maxlen=REMEMBERED)
        # what it has ordered, in its words and ours, and not been told the result of
        self._ordered: tuple[str, str] | None = None
        self._reported = 0  # number of the last incident that it was told of
        self._paused_until: float | None = None  # by its order
        self._left: set[int] = set()  # nodes that it has had replaced under this uuid
        self._moving: tuple[int, str] | None = None  # node that is to move, and its agent then
        self._handlers = {
            "stopTrain": self._stop,
            "globalFault": self._global_fault,
            "changeStrategy": self._change_strategy,
            "saveAndExit": self._save_and_exit,
            "preExitProcess": self._end_processes,
            "faultNodesExit": self._leave_nodes,
            "killMaster": self._kill,
            "hot-switch": self._hot_switch,
        }

    # -- the connection ----------------------------------------------------------------------------

    def connected(self, event: e.ClusterConnected, now: float) -> None:
        if event.on == self._on:
            return
        self._on = event.on
        self._job.cluster_decides = event.on and self._job.settings.clusterd == "follow"
        self._forget(now)
        incident = self._recovery.incident
        if not event.on and incident is not None and incident.consults:
            incident.consults = False
            self._job.note("ClusterD is gone: the repair goes on without its strategy")
            self._recovery.advance(now)

    @property
    def due(self) -> float | None:
        return self._paused_until

    def tick(self, now: float) -> None:
        if self._paused_until is not None and now >= self._paused_until:
            self._go_on("ClusterD has not let the ranks go on in time", now)

    def _go_on(self, why: str, now: float) -> None:
        """End ClusterD's pause, if there is one."""
        if self._paused_until is not None:
            self._paused_until = None
            self._reports.owed.discard(Owed.PAUSED)
            if why:
                self._job.note(why)
            self._pause.release("", CLUSTERD)
            self._finishing.look(now)

    def _forget(self, now: float) -> None:
        """ClusterD begins anew."""
        self._go_on("ClusterD is gone, or begins anew", now)
        self._uuid, self._ordered, self._moving = "", None, None
        self._reports.forget()
        self._seen.clear()

    # -- signals -----------------------------------------------------------------------------------

    def signal(self, event: e.ClusterSignal, now: float) -> None:
        if not self._on or event in self._seen:
            return
        self._seen.append(event)
        if event.kind in IGNORED:
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
            self._job.note(f"ClusterD's signal {event.kind} names {what}, which this job has not")
            return
        follows = event.kind in ("globalFault", "changeStrategy")
        if follows and self._uuid and event.uuid != self._uuid:
            self._job.note(
                f"ClusterD's signal {event.kind} is of {event.uuid[:8]}, and {self._uuid[:8]} is"
                " being handled: it is late, and ignored"
            )
            return
        if event.uuid != self._uuid:
            self._uuid = event.uuid
            self._left.clear()
        strategy = f" {event.strategy}" if event.strategy else ""
        ranks = f", ranks [{abbreviate(r for r, _ in event.ranks)}]" if event.ranks else ""
        nodes = f", nodes {list(event.nodes)}" if event.nodes else ""
        self._job.note(f"ClusterD: {event.kind}{strategy}{ranks}{nodes}")
        handler(event, now)
        if (incident := self._recovery.incident) is not None:
            self._reported = incident.number  # it knows

    def _stop(self, event: e.ClusterSignal, now: float) -> None:
        self._reports.owed.clear()
        self._ordered = None
        repaired = self._reports.taken_up() and self._recovery.incident is None
        if not self._job.protected:
            self._reports.send(
                Owed.STOPPED, NOT_READY, "not every rank has begun its protected loop"
            )
        elif "pause_train" in event.actions:
            self._reports.owed.add(Owed.PAUSED)
            self._paused_until = now + (event.timeout or PAUSE_SECONDS)
            self._pause.request("", CLUSTERD)
            self._finishing.look(now)
        elif repaired:  # meanwhile; the ranks are not stopped once more for it
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

    def _global_fault(self, event: e.ClusterSignal, now: float) -> None:
        if not self._job.protected:
            return
        if "fault_nodes_exit" in event.actions:
            self._leave_nodes(event, now)
        if self._job.over:
            return
        self._reports.owed.add(Owed.ABLE)
        incident = self._recovery.incident
        if incident is not None:
            incident.kinds.update({r: kind for r, kind in event.ranks if kind != OTHER})
        known = self._reports.known | (set(incident.replaced) if incident is not None else set())
        gone = {
            r: "ClusterD reports a fault of its device or process"
            for r, kind in event.ranks
            if kind == OTHER and self._job.ranks[r].alive and r not in known
        }
        if gone:
            text = f"ClusterD reports a fault of ranks [{abbreviate(sorted(gone))}]"
            self._advice.consult(text, now, gone)

    def _end_processes(self, event: e.ClusterSignal, now: float) -> None:
        """Processes of nodes whose hardware has failed: they end before ClusterD has decided."""
        if not self._job.protected:
            return
        nodes = [n for n in event.nodes if self._job.topology.nodes[n].living]
        ranks = [r for n in nodes for r in self._job.topology.nodes[n].ranks]
        text = f"ClusterD reports a hardware fault of nodes {nodes}"
        if ranks:
            self._advice.consult(text, now, dict.fromkeys(ranks, text))
            self._tell_fault()

    def _leave_nodes(self, event: e.ClusterSignal, now: float) -> None:
        for number in event.nodes:
            node = self._job.topology.nodes.get(number)
            # named when another agent has its place already
            known = number in self._left or self._reports.replaced(number)
            if node is not None and node.living and not known and not self._job.over:
                self._left.add(number)
                self._recovery.give_up(number, "ClusterD replaces its pod", now)

    def _save_and_exit(self, event: e.ClusterSignal, now: float) -> None:
        self._ordered = "dump", "dump"
        self._recovery.leave("ClusterD ends the job", ("dump", "exit"), now)

    def _kill(self, event: e.ClusterSignal, now: float) -> None:
        reason = "The job ends: ClusterD orders it, and schedules it again (killMaster)"
        self._job.say(to_agent.GiveUp(reason))
        self._job.end(False, reason)

    # -- the strategy ------------------------------------------------------------------------------

    def _change_strategy(self, event: e.ClusterSignal, now: float) -> None:
        word = event.strategy
        self._reports.owed.clear()
        if word == "continue":
            self._go_on("", now)
            self._reports.tell("ReportRecoverStatus", OK, "", strategy=word)
        elif word == "migration":
            self._ordered = word, word
        elif word not in STRATEGIES:
            text = f"taskd cannot do {word!r}; it can {', '.join(STRATEGIES)}"
            self._job.note(f"ClusterD's strategy is refused: {text}")
            self._reports.tell("ReportRecoverStatus", FAILED, text, strategy=word)
        else:
            ours = IN_PLACE if event.extra == IN_PLACE else word
            self._ordered = word, ours
            if ours == "recover":
                self._leave_nodes(event, now)
            self._order(ours, now)

    def _order(self, ours: str, now: float) -> None:
        """Have the incident go on by `ours`. One that is further is left alone, unless the job is
        to end."""
        incident = self._recovery.incident
        waits = incident is not None and incident.phase in (Phase.INTERRUPT, Phase.CONSULT)
        if incident is None:
            if ours in ENDING:
                rungs = ("dump", "exit") if ours == "dump" else ("exit",)
                self._recovery.leave(f"ClusterD orders {ours}", rungs, now)
        elif (waits and incident.moving is None) or ours in ENDING:
            if incident.strategy != ours or incident.consults:
                self._advice.take(ours, now)
        else:
            self._job.note(
                f"ClusterD's strategy {ours} comes while {incident.strategy} is under way, which"
                " goes on"
            )

    def _hot_switch(self, event: e.ClusterSignal, now: float) -> None:
        if "hot switch" not in event.actions:
            return  # "new pod running" is seen from its agent, "stop switch" from its absence
        nodes = {self._job.topology.node_of(r) for r, _ in event.ranks} - {None}
        for number in sorted(n for n in nodes if n is not None):
            why = "ClusterD reports it"
            if refusal := self._switch.refusal(number):
                self._reports.tell("ReportRecoverStrategy", OK, refusal, strategies=("exit",))
            else:
                self._moving = number, self._job.topology.nodes[number].agent
                self._reports.owed.add(Owed.MOVABLE)
            self._switch.reported(from_operator.NodeSubHealthy("", number, why), now)

    # -- after each event --------------------------------------------------------------------------

    def look(self, now: float) -> None:
        """Tell ClusterD what it waits for, as soon as it holds."""
        job, incident = self._job, self._recovery.incident
        if job.settings.clusterd != "off" and not self._asked and job.election.in_charge:
            self._asked = True
            job.say(c.ConnectClusterD())
        if not self._on:
            return
        new = incident is not None and incident.number > self._reported and incident.rounds > 0
        if new and not job.over:
            assert incident is not None
            moves = incident.moving is not None
            # of a repair in place ClusterD is told only if it decides about it
            if not moves and (job.cluster_decides or incident.phase is Phase.RESCHEDULE):
                self._tell_fault()
        if job.over:
            self._reports.owed.clear()
        elif Owed.STOPPED in self._reports.owed and incident is None:
            self._have_stopped(now)
        if self._advice.stopped:
            self._reports.pay(Owed.STOPPED)
        # looked at after every event: what fits is a scan of all ranks
        if Owed.ABLE in self._reports.owed and (self._advice.stopped or incident is None):
            self._reports.pay(Owed.ABLE, strategies=self._able())
        if self._pause.all_paused:
            self._reports.pay(Owed.PAUSED)
        if self._moving is not None and self._switch.ready(self._moving[0]):
            self._reports.pay(Owed.MOVABLE, strategies=("migration",))
        if self._ordered is not None:
            self._result(*self._ordered)

    def _able(self) -> tuple[str, ...]:
        """In ClusterD's words."""
        words = [s.removesuffix("-in-place") for s in self._advice.able()]
        return tuple(dict.fromkeys(w for w in (*words, "exit") if w in STRATEGIES))

    def _result(self, word: str, ours: str) -> None:
        incident = self._recovery.incident
        code, text = None, ""
        if ours == "migration":
            if self._moving is None or not self._switch.moves(self._moving[0]):
                node = self._job.topology.nodes.get(self._moving[0]) if self._moving else None
                moved = node is not None and self._moving and node.agent != self._moving[1]
                code, text = (OK, "") if moved else (FAILED, "the node has not moved")
        elif self._job.over:
            done = incident is not None and any(t.startswith("dump: done") for t in incident.tried)
            code = OK if done or ours == "exit" else FAILED
            text = incident.tried[-1] if incident is not None and incident.tried else ""
        elif incident is None:
            code = OK
        elif ours in incident.failed or not self._may_still(incident.strategy, ours):
            code = FAILED
            text = f"{ours} has failed or does not fit; {incident.strategy} is under way"
        if code is not None:
            self._ordered = None
            self._reports.tell("ReportRecoverStatus", code, text, strategy=word)
            if ours == "migration" or incident is None:
                self._uuid, self._moving = "", None
                # of a hot switch; the next one looks the same
                for signal in [s for s in self._seen if not s.uuid]:
                    self._seen.remove(signal)

    def _may_still(self, present: str, ours: str) -> bool:
        """Whether the incident, under `present`, still does what was ordered. Every repair does
        what `retry` and `recover` ask for: the job trains on."""
        return present == ours or (present not in ENDING and ours not in ENDING)

    def _tell_fault(self) -> None:
        incident = self._recovery.incident
        if incident is not None:
            self._reported = incident.number
            self._reports.fault()
