"""Saves the job's state on request: because it has to leave its machines, or while it trains on.

All ranks pause before the same step, so that none of their work is lost. Where the job trains on,
saving.py saves the state then; a job that leaves does so by an incident of its own, under the
strategy `dump`. It does not wait for a repair: what every rank has recorded is saved at once. Nor
does it wait for a rank that is still in its step when time runs short: the start of that step is
saved.

A node that has to leave alone moves to a standby instead, if one is there and `recover` is
configured; the others train on. Where an advisor has lost nodes replaced, it is given up.
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.machine import Recovery
from taskd.core.incident.phases import Phase
from taskd.core.incident.state import Incident
from taskd.core.job.pause import SAVING, Pause
from taskd.core.job.state import JobState, Part
from taskd.core.lifecycle.finishing import Finishing
from taskd.core.nodes.switch import Switch
from taskd.core.requests.saving import Report, Saving
from taskd.messages import from_agent, from_operator, from_rank

# seconds kept in hand: ranks need 2 to be interrupted, launchers and manager 1 to end
RESERVE = 3.0


class Leaving(Part):
    def __init__(
        self,
        job: JobState,
        recovery: Recovery,
        pause: Pause,
        finishing: Finishing,
        switch: Switch,
        advised: Callable[[], bool],
    ) -> None:
        """`advised`: whether an advisor is connected, which has lost nodes replaced."""
        self._job, self._recovery, self._pause = job, recovery, pause
        self._finishing, self._switch, self._advised = finishing, switch, advised
        self._why = ""  # why the state is saved; "": nothing is asked for
        self._ends = False  # the job ends then
        self._leaves = False  # an incident saves it
        self.saving = Saving(job)  # or, beside training, this
        self._until: float | None = None  # when the machines may be gone
        self._latest = 0.0  # when to stop waiting for ranks to pause, or for what is written
        self._requests: list[str] = []
        self._later: list[str] = []  # have come since the state was copied
        self._moving: dict[int, str] = {}  # nodes that leave by moving -> their agents
        # phase, interruption, and how many agents are gone, after the last event
        self._at: tuple[Phase | None, int, int] = None, 0, 0
        self._takes = 0.0  # seconds that saving takes, as ranks have estimated

    # -- what is asked for -------------------------------------------------------------------------

    def estimated(self, event: from_rank.SaveEstimate, now: float) -> None:
        self._takes = max(self._takes, event.seconds)

    def asked_to_leave(self, event: from_agent.AskedToLeave, now: float) -> None:
        job, node = self._job, self._job.topology.nodes.get(event.node)
        if not job.protected or node is None or not node.living or event.node in self._moving:
            return  # its launcher ends as it would without taskd
        why = f"node {event.node} has to leave within {event.grace:.0f} s: {event.cause}"
        if not self._ends and self._moves(event.node, why):
            job.note(f"{why}; a standby takes its place")
            self._moving[event.node] = node.agent
            return
        if not self._ends and self._is_replaced(event.node):
            self._recovery.give_up(event.node, why, now)
            return
        until = now + event.grace
        self._until = until if self._until is None else min(self._until, until)
        self._begin(why, True, self._until - self._takes - RESERVE, now)

    def _is_replaced(self, number: int) -> bool:
        """Whether another pod takes the node's place, and the others go on with it. The last one
        saves what there is."""
        others = any(n.living for i, n in self._job.topology.nodes.items() if i != number)
        settings = self._job.settings
        return others and "recover" in settings.ladder and not settings.saves and self._advised()

    def _moves(self, number: int, why: str) -> bool:
        """Move the node to a standby, if each node that leaves has one."""
        free = len(self._job.topology.standbys) - len(self._moving)
        return (
            "recover" in self._job.settings.ladder and free > 0 and self._switch.move(number, why)
        )

    def requested(self, event: from_operator.SaveRequested, now: float) -> None:
        if not self._job.protected:
            refusal = f"{self._job.unready}: there is no state to save"
        elif self._why and self._ends and not event.end:
            refusal = f"the job is about to end: {self._why}"
        elif self._writes and not event.end:
            self._later.append(event.request)
            return
        else:
            self._requests.append(event.request)
            why = "the state is saved, and the job ends: requested by an operator"
            if not event.end:
                why = "the state is saved: requested by an operator"
            self._begin(why, event.end, now + self._job.settings.pause_all, now)
            return
        self._job.answer(event.request, False, refusal)

    def save(self, why: str, now: float) -> None:
        """Save the state, and let the ranks train on; unless it is being saved already, or they are
        paused, or a framework has some of them away."""
        away = self._job.handlers and self._job.away
        if self._why:
            self._job.note(f"{why}: not now, as the last dump is still under way")
        elif self._job.protected and not (self._pause.wanted or away):
            self._begin(why, False, now + self._job.settings.pause_all, now)

    def _begin(self, why: str, ends: bool, latest: float, now: float) -> None:
        waited = bool(self._why)
        if ends or not self.saving.under_way:
            self._latest = min(self._latest, latest) if waited and self._ends else latest
        if not waited or (ends and not self._ends):
            if self.saving.under_way:
                self._job.note("the dump that is under way is given up for the job's last one")
            self.saving.drop()
            self._requests, self._later = [*self._requests, *self._later], []
            self._why, self._ends, self._leaves = why, ends, False
            self._job.leaves = ends
            self._job.note(f"{why}: all ranks pause")
            self._pause.request("", SAVING)
        self._finishing.check(now)

    # -- until it is saved -------------------------------------------------------------------------

    @property
    def _writes(self) -> bool:
        """Whether the ranks train while the state is written."""
        return self.saving.under_way and not self.saving.needs_pause

    @property
    def deadline(self) -> float | None:
        return self._latest if self._why and not self._leaves else None

    def tick(self, now: float) -> None:
        if (due := self.deadline) is None or now < due:
            return
        if self.saving.begun:
            limit = self._job.settings.dump
            self._over(False, f"not saved: it was not written within {limit:.0f} s", now)
        elif self.saving.under_way:
            self._over(False, "not saved: not all ranks have reported what they hold", now)
        elif self._ends:
            self._leave("some ranks have not paused in time", now)
        elif self._recovery.incident is None:
            self._over(False, "not saved: not all ranks had paused in time", now)
        else:  # they pause when it is over
            self._latest = now + self._job.settings.pause_all

    def follow_up(self, now: float) -> None:
        for number in list(self._moving):
            self._moved(number, now)
        incident = self._recovery.incident
        at = self._recovery.phase, self._job.interruption, len(self._job.fenced)
        # orders are carried out before the next event interrupts what they are for
        same, self._at = at == self._at, at
        if not self._why or self._job.over:
            return
        if self._leaves:
            if incident is None:
                self._over(False, "not saved: the repair of a fault came between", now)
        elif self.saving.under_way:
            self._look(incident, same, now)
        elif self._at_the_end():
            self._over(False, "not saved: the ranks have left their loops", now)
        elif self._ends and incident is not None and incident.moving is None and same:
            self._leave("a repair is under way", now)
        elif incident is None and self._pause.all_paused and not self._pause.busy:
            if self._ends:
                self._leave("", now)
            elif ended := [number for number, rank in self._job.ranks.items() if rank.ended]:
                who = f"ranks [{abbreviate(ended)}] have ended in the middle of their loops"
                self._over(False, f"not saved: {who}", now)
            else:
                self.saving.begin()

    def _look(self, incident: Incident | None, same: bool, now: float) -> None:
        """Let the ranks train on once the dump needs them no longer; or give it up."""
        if self.saving.needs_pause:
            why = self.saving.lost() if not same else ""
            if incident is not None or why:
                self._over(False, f"not saved: {why or 'a fault came between'}", now)
        elif not same and (why := self.saving.lost()):
            self._over(False, f"not saved: {why}", now)
        elif SAVING in self._pause.holders:
            self._job.note(f"{self._why}: the ranks train on while it is written")
            self._pause.release("", SAVING)
            self._finishing.check(now)

    def told(self, event: from_rank.RankPosition, now: float) -> None:
        if why := self.saving.told(event):
            self._over(False, f"not saved: {why}", now)
        elif self.saving.begun:
            self._latest = now + self._job.settings.dump

    def saved(self, event: Report, now: float) -> None:
        """A part of a dump has been written, or could not be; or the dump is complete."""
        if not event.dump:
            self._recovery.saved(event, now)
        elif (end := self.saving.took(event)) is not None:
            done, text = end
            self._over(done, f"the state is saved: {text}" if done else f"not saved: {text}", now)

    def _at_the_end(self) -> bool:
        """Whether ranks have ended after their last step, or all by themselves before it."""
        ended = [rank for rank in self._job.ranks.values() if rank.ended]
        return len(ended) == len(self._job.ranks) or any(not rank.quit for rank in ended)

    def _leave(self, hurry: str, now: float) -> None:
        """Save the state, and end the job."""
        text = f"{self._why}{f'; {hurry}' if hurry else ''}"
        self._leaves = True
        self._recovery.leave(text, ("dump", "exit"), now, self._latest)

    def _moved(self, number: int, now: float) -> None:
        """Look after a node that moves because it has to leave."""
        agent, node = self._moving[number], self._job.topology.nodes[number]
        if self._switch.moves(number) and not self._job.over:
            return
        del self._moving[number]
        if node.agent == agent and node.living and not self._job.over:
            why = f"node {number} has to leave, and no standby could take its place"
            self._begin(why, True, now + self._job.settings.interruption, now)

    def _over(self, ok: bool, text: str, now: float) -> None:
        """The state is saved, or will not be, and the ranks train on."""
        self._job.note(text if ok else f"{self._why}: {text}")
        later = self._later
        self._answer(ok, text, later=False)
        self._forget()
        if SAVING in self._pause.holders:
            self._pause.release("", SAVING)
        self._finishing.check(now)
        if later:
            self._requests = later
            why = "the state is saved: requested by an operator"
            self._begin(why, False, now + self._job.settings.pause_all, now)

    def end(self) -> None:
        """The job is over."""
        incident = self._recovery.incident
        saved = incident.saved if incident is not None else ""
        self._answer(bool(saved), f"the state is saved: {saved}" if saved else "the job is over")
        self._forget()
        self._moving.clear()

    def _answer(self, ok: bool, text: str, later: bool = True) -> None:
        for request in (*self._requests, *(self._later if later else ())):
            self._job.answer(request, ok, text)

    def _forget(self) -> None:
        self._requests, self._later = [], []
        self.saving.drop()
        self._why, self._ends, self._leaves, self._until = "", False, False, None
        self._job.leaves = False

    def drop(self, why: str) -> None:
        """The ranks' processes are gone."""
        self._answer(False, f"not saved: {why}")
        self._forget()
        self._moving.clear()
