"""Carries out the manager's orders.

Used by the agent's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from taskd import raised
from taskd.agent.copies import dumping, standing_in
from taskd.agent.manager.manager_watch import ManagerWatch
from taskd.agent.member import Member
from taskd.agent.ranks.deaths import Deaths
from taskd.agent.ranks.model import Epoch, Rank, Verdict
from taskd.agent.ranks.rank_monitor import RankMonitor
from taskd.agent.ranks.rank_processes import RankProcesses
from taskd.agent.ranks.watchdog import BETWEEN, ENDING, TRAINING
from taskd.agent.standby import Standby
from taskd.cython_api import slot
from taskd.messages import from_agent, from_rank, to_agent, to_rank

log = logging.getLogger("taskd.agent")

# seconds that a script outside our loops may take to notice an interruption
BETWEEN_STEPS = 600.0


class Orders:
    def __init__(
        self,
        member: Member,
        deaths: Deaths,
        processes: RankProcesses,
        monitor: RankMonitor,
        standby: Standby,
        manager_watch: ManagerWatch,
        beat: Callable[[float], None],
    ) -> None:
        """`beat` answers the TimeAsked of that time; 0: none, it is a heartbeat."""
        self._beat = beat
        self._member, self._deaths, self._processes = member, deaths, processes
        self._monitor, self._standby, self._manager_watch = monitor, standby, manager_watch
        self._paused_by = (0, "")  # the manager that ordered the last pause
        # orders that an agent without ranks obeys too, and those about its ranks
        self._of_the_agent: dict[type, Callable[[Any], None]] = {
            to_agent.TimeAsked: lambda order: beat(order.at),
            to_agent.Fence: self._fenced,
            to_agent.Prepare: self._of_a_standby,
            to_agent.TakeOver: self._of_a_standby,
            to_agent.StandDown: self._of_a_standby,
            to_agent.End: self._end,
            to_agent.Permit: self._permitted,
            to_agent.KeepSwitch: self._keep_switch,
            to_agent.KeepFaults: self._keep_faults,
            to_agent.KeepCondemned: self._keep_condemned,
            to_rank.Profile: self._profile,
            to_agent.RegistrationRefused: self._refused,
        }
        self._of_the_ranks: dict[type, Callable[[Epoch, Any], None]] = {
            to_rank.Interrupt: self._interruption,
            to_rank.Rebuild: self._rebuild,
            to_rank.Restore: member.send_to_ranks,
            to_rank.GroupsReady: member.send_to_ranks,
            to_rank.Resume: self._resume,
            to_rank.Release: self._release,
            to_rank.ProbeProgress: monitor.progress_probe,
            to_agent.AskSteps: lambda epoch, _: monitor.ask_steps(epoch, member.node),
            to_rank.Pause: self._pause,
            to_rank.Continue: self._pause,
            to_rank.Unprotected: self._unprotected,
            to_rank.SwitchNics: member.send_to_ranks,
            to_rank.StressTest: member.send_to_ranks,
            to_rank.Inject: lambda epoch, order: monitor.inject(epoch, order, member.node),
            to_rank.AskPosition: member.send_to_ranks,
            to_rank.RecordState: self._save_state,
            to_rank.CopyState: self._save_state,
            to_rank.SaveState: self._save_state,
            to_rank.SaveCheckpoint: member.send_to_ranks,
            to_rank.RenameCheckpoint: self._save_state,
            to_agent.SaveRecords: self._save_records,
            to_agent.Seal: lambda _, order: dumping.seal(order, member.report_later),
            to_agent.KeepRecords: self._keep_records,
            to_agent.TakeRecords: self._take_records,
            to_agent.Replace: self._replace,
            to_agent.Kill: self._kill,
            to_agent.RestartAll: self._restart_all,
            to_agent.GiveUp: lambda _, order: member.decide(
                Verdict("give up", order.reason, ending=order.ending)
            ),
        }

    def obey(self, order: Any) -> None:
        epoch, kind = self._member.epoch, type(order)
        if kind in self._of_the_agent:
            self._of_the_agent[kind](order)
        elif epoch is not None and kind in self._of_the_ranks:
            self._of_the_ranks[kind](epoch, order)

    # -- the agent ---------------------------------------------------------------------------------

    def _of_a_standby(
        self, order: to_agent.Prepare | to_agent.TakeOver | to_agent.StandDown
    ) -> None:
        member = self._member
        if isinstance(order, to_agent.TakeOver) and order.former == member.name:
            if member.epoch is not None:
                member.epoch.moves_to = order.agent  # a new manager has to hear from it first
        elif order.agent != member.name:
            log.error("%s is for another agent, %s: ignored", type(order).__name__, order.agent[:8])
        elif isinstance(order, to_agent.StandDown):
            self._standby.stand_down(order)
        else:
            self._standby.ordered(order)

    def _end(self, order: to_agent.End) -> None:
        member = self._member
        member.over.set()
        # it may come while the ranks are being restarted
        if not order.ok and (member.decided is None or member.decided.what != "give up"):
            why = order.reason.removeprefix("The job ends: ")
            member.decide(Verdict("give up", f"The job ends: {why}", ending=order.ending))
        member.news.set()
        if member.managers is not None:
            member.managers.over = True
        self._standby.leave()

    def _fenced(self, order: to_agent.Fence) -> None:
        """Leave the job: kill this agent's ranks, and have the launcher give up."""
        if self._member.managers is None or order.agent != self._member.name:
            return
        self._member.managers.over = True
        self._standby.leave()
        reason = f"this node has been replaced: {order.reason}"
        if self._member.decided is None or self._member.decided.what != "give up":
            self._member.decide(Verdict("give up", reason, moved=order.moved))
        for rank in self._member.epoch.ranks.values() if self._member.epoch else ():
            if rank.over is None:
                self._processes.kill(rank)

    def _keep_switch(self, order: to_agent.KeepSwitch) -> None:
        self._member.switches = max(self._member.switches, order.switches)

    def _keep_faults(self, order: to_agent.KeepFaults) -> None:
        self._member.faults = self._member.faults._replace(had=order.had)

    def _keep_condemned(self, order: to_agent.KeepCondemned) -> None:
        if order.node == self._member.node:
            self._member.condemned = order.ranks

    def _profile(self, order: to_rank.Profile) -> None:
        member, epoch = self._member, self._member.epoch
        member.profile = order.ranges
        for rank in epoch.ranks.values() if epoch is not None else ():
            self._monitor.ask(rank, order)  # others get it when they connect

    def _permitted(self, order: to_agent.Permit) -> None:
        if self._member.records is not None:
            self._member.records.permit(order)

    def _refused(self, order: to_agent.RegistrationRefused) -> None:
        epoch = self._member.epoch
        if epoch is not None:
            self._manager_watch.leave_unprotected(
                epoch, f"the manager refuses this node: {order.reason}"
            )

    # -- its ranks ---------------------------------------------------------------------------------

    def _rebuild(self, epoch: Epoch, order: to_rank.Rebuild) -> None:
        epoch.generation, epoch.building = order.generation, order.stand_ins
        for number, _ in order.stand_ins:
            if (rank := epoch.find(number)) is not None:
                self._processes.leave(epoch, rank)
        self._member.send_to_ranks(epoch, order)

    def _resume(self, epoch: Epoch, order: to_rank.Resume) -> None:
        self._member.protect(epoch)
        news = any(rank.stateless for rank in epoch.ranks.values())
        epoch.resumed, epoch.stand_ins = order.generation, epoch.building
        for rank in epoch.ranks.values():
            rank.stateless = False
        self._standby.moved()
        self._member.send_to_ranks(epoch, order)
        if news:
            self._beat(0.0)  # an operator need not wait for the next one to see the new processes

    def _unprotected(self, epoch: Epoch, order: to_rank.Unprotected) -> None:
        """As if no script had called protect()."""
        self._member.protect(epoch, False)
        epoch.unprotected = order.reason
        for rank in epoch.ranks.values():
            rank.joined = False
        self._member.send_to_ranks(epoch, order)

    def _release(self, epoch: Epoch, order: to_rank.Release) -> None:
        epoch.released = max(epoch.released, order.step)
        self._member.send_to_ranks(epoch, order)

    def _pause(self, epoch: Epoch, order: to_rank.Pause | to_rank.Continue) -> None:
        pause = order if isinstance(order, to_rank.Pause) else None
        epoch.passing, self._paused_by = pause is not None and pause.passing, self._member.obeyed
        epoch.for_move = epoch.passing and pause is not None and pause.moving
        what = "the pause is over" if pause is None else f"pause before step {pause.step}"
        log.info("%s, ordered in term %d", what, self._member.obeyed[0])
        self._monitor.pause(epoch, None if pause is None else pause.step)
        self._member.send_to_ranks(epoch, order)

    def look_at_manager(self) -> None:
        """End a temporary pause that an earlier manager ordered."""
        epoch = self._member.epoch
        if epoch is not None and epoch.passing and self._paused_by != self._member.obeyed:
            self._pause(epoch, to_rank.Continue())

    def _interruption(self, epoch: Epoch, order: to_rank.Interrupt) -> None:
        now = time.monotonic()
        if order.interruption > epoch.interruption:
            epoch.moving, epoch.moves_to, epoch.former = epoch.for_move, "", ""
            for rank in epoch.ranks.values():
                rank.idle = self._monitor.watchdog.idle(epoch.page.read(rank.local), now)
        epoch.interruption = max(epoch.interruption, order.interruption)
        epoch.page.interrupt(order.interruption)
        for rank in epoch.ranks.values():
            self._member.send_to_rank(rank, order)
        for rank in epoch.ranks.values():
            if rank.over is not None or rank.interrupted >= order.interruption or not rank.joined:
                continue
            view = epoch.page.read(rank.local)
            if view.phase in (*TRAINING, *BETWEEN, slot.SETUP, *ENDING):
                # user code may use up its remaining time before it counts as hung, wherever it is;
                # the manager adds its own grace
                left = (
                    self._monitor.watchdog.left(view, now)
                    if view.phase in (*TRAINING, *BETWEEN)
                    else BETWEEN_STEPS
                )
                self._member.report(
                    from_agent.RankBusy(
                        rank.number, rank.incarnation, order.interruption, float(left)
                    )
                )

    def _save_state(
        self,
        epoch: Epoch,
        order: to_rank.RecordState
        | to_rank.CopyState
        | to_rank.SaveState
        | to_rank.RenameCheckpoint,
    ) -> None:
        rank = epoch.find(order.rank)
        if rank is None:
            return
        if isinstance(order, to_rank.SaveState) and order.copied:
            if not self._monitor.ask(rank, order):  # its training thread trains
                who = rank.number, rank.incarnation, order.interruption
                why = "its process does not listen"
                self._member.report(from_rank.StateSaved(*who, (), why, order.dump))
        else:
            self._member.send_to_rank(rank, order)

    def _save_records(self, epoch: Epoch, order: to_agent.SaveRecords) -> None:
        dumping.save_records(
            order, self._member.node, epoch, self._member.records, self._member.report_later
        )

    def _take_records(self, epoch: Epoch, order: to_agent.TakeRecords) -> None:
        member = self._member
        if order.node == member.node:
            standing_in.take(order, epoch, member.records, member.report_later)

    def _keep_records(self, epoch: Epoch, order: to_agent.KeepRecords) -> None:
        member = self._member
        if order.node == member.node and member.records is not None:
            member.keepers = order.keepers
            member.records.keep_at(order.at)

    def _find(self, epoch: Epoch, number: int) -> Rank | None:
        rank = epoch.find(number)
        if rank is None:
            log.error("the manager named rank %d, which is not on this node", number)
        return rank

    def _replace(self, epoch: Epoch, order: to_agent.Replace) -> None:
        if (rank := self._find(epoch, order.rank)) is not None:
            self._processes.replace(epoch, rank, order.incarnation)

    def _kill(self, epoch: Epoch, order: to_agent.Kill) -> None:
        rank = self._find(epoch, order.rank)
        if rank is None or order.incarnation != rank.incarnation:
            return
        if rank.over is not None:
            self._deaths.report_end(rank)  # the manager knows it, or should
            return
        if rank.gone:  # its death will be reported
            return
        # it has said that this takes long, where a report of its device may call it a hang
        asked = epoch.page.read(rank.local).until_ns / 1e9 - time.monotonic()
        busy = f" (in a long operation, or compiling, with {asked:.0f} s left)" if asked > 0 else ""
        log.warning("rank %d is killed%s: %s", rank.number, busy, order.reason)
        rank.killed, pid = order.reason, rank.pid

        def end(text: str = "") -> None:
            if text and rank.pid == pid:
                rank.traceback = raised.cut(text)
            self._processes.end(epoch, rank, order.incarnation)

        if order.stacks and rank.process is not None:
            self._monitor.with_stacks(rank, end)
        else:
            end()

    def _restart_all(self, epoch: Epoch, order: to_agent.RestartAll) -> None:
        if dict(order.epochs).get(self._member.node) == epoch.number:
            self._member.decide(Verdict("restart", order.reason, order))
