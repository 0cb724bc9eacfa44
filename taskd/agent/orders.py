"""Carries out the manager's orders.

Used by the agent's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from taskd.agent.copies import dumping
from taskd.agent.ranks.model import Epoch, Rank, Verdict
from taskd.agent.ranks.watchdog import TRAINING
from taskd.cython_api import slot
from taskd.messages import from_agent, to_agent, to_rank

if TYPE_CHECKING:
    from taskd.agent.agent import Agent

log = logging.getLogger("taskd.agent")

# seconds that a script outside a loop of ours may take before it sees an interruption
BETWEEN_STEPS = 600.0


class Orders:
    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._paused_by = (0, "")  # the manager that ordered the last pause
        # orders that an agent without ranks obeys too, and those about its ranks
        self._of_the_agent: dict[type, Callable[[Any], None]] = {
            to_agent.TimeAsked: lambda order: agent.beat(order.at),
            to_agent.Fence: self._fenced,
            to_agent.Prepare: self._of_a_standby,
            to_agent.TakeOver: self._of_a_standby,
            to_agent.StandDown: self._of_a_standby,
            to_agent.End: self._end,
            to_agent.Permit: self._permitted,
            to_agent.KeepSwitch: self._keep_switch,
            to_rank.Profile: self._profile,
            to_agent.Refused: self._refused,
        }
        self._of_the_ranks: dict[type, Callable[[Epoch, Any], None]] = {
            to_rank.Interrupt: self._interruption,
            to_rank.Rebuild: self._rebuild,
            to_rank.Restore: agent.tell_ranks,
            to_rank.GroupsReady: agent.tell_ranks,
            to_rank.Resume: self._resume,
            to_rank.Release: self._release,
            to_rank.ProbeProgress: lambda epoch, order: agent.monitor.progress_probe(epoch, order),
            to_agent.AskSteps: lambda epoch, _: agent.monitor.ask_steps(epoch, agent.node),
            to_rank.Pause: self._pause,
            to_rank.Continue: self._pause,
            to_rank.SwitchNics: agent.tell_ranks,
            to_rank.StressTest: agent.tell_ranks,
            to_rank.Inject: lambda epoch, order: agent.monitor.inject(epoch, order),
            to_rank.RecordState: self._save_state,
            to_rank.SaveState: self._save_state,
            to_rank.SaveCheckpoint: agent.tell_ranks,
            to_rank.RenameCheckpoint: self._save_state,
            to_agent.SaveRecords: self._save_records,
            to_agent.Seal: lambda _, order: dumping.seal(order, self._tell_later),
            to_agent.KeepRecords: self._keep_records,
            to_agent.Replace: self._replace,
            to_agent.Kill: self._kill,
            to_agent.RestartAll: self._restart_all,
            to_agent.GiveUp: lambda _, order: agent.decide(Verdict("give up", order.reason)),
        }

    def obey(self, order: Any) -> None:
        epoch, kind = self._agent.epoch, type(order)
        if kind in self._of_the_agent:
            self._of_the_agent[kind](order)
        elif epoch is not None and kind in self._of_the_ranks:
            self._of_the_ranks[kind](epoch, order)

    # -- the agent ---------------------------------------------------------------------------------

    def _of_a_standby(
        self, order: to_agent.Prepare | to_agent.TakeOver | to_agent.StandDown
    ) -> None:
        agent = self._agent
        if isinstance(order, to_agent.TakeOver) and order.former == agent.name:
            if agent.epoch is not None:
                agent.epoch.moves_to = order.agent  # whom a new manager has to hear first
        elif order.agent != agent.name:
            log.error("%s is for another agent, %s: ignored", type(order).__name__, order.agent[:8])
        elif isinstance(order, to_agent.StandDown):
            agent.standby.stand_down(order)
        else:
            agent.standby.ordered(order)

    def _end(self, order: to_agent.End) -> None:
        agent = self._agent
        agent.over.set()
        if not order.ok and agent.decided is None:
            agent.decide(Verdict("give up", f"the job has ended: {order.reason}"))
        agent.news.set()
        if agent.managers is not None:
            agent.managers.over = True
        agent.standby.leave()

    def _fenced(self, order: to_agent.Fence) -> None:
        """Leave the job: kill this agent's ranks, and have the launcher give up."""
        if self._agent.managers is None or order.agent != self._agent.name:
            return
        self._agent.managers.over = True
        self._agent.standby.leave()
        reason = f"this node has been replaced: {order.reason}"
        if self._agent.decided is None or self._agent.decided.what != "give up":
            self._agent.decide(Verdict("give up", reason))
        for rank in self._agent.epoch.ranks.values() if self._agent.epoch else ():
            if rank.over is None:
                self._agent.processes.kill(rank)

    def _keep_switch(self, order: to_agent.KeepSwitch) -> None:
        self._agent.switches = max(self._agent.switches, order.switches)

    def _profile(self, order: to_rank.Profile) -> None:
        agent, epoch = self._agent, self._agent.epoch
        agent.profile = order.ranges
        for rank in epoch.ranks.values() if epoch is not None else ():
            agent.monitor.ask(rank, order)  # others are told when they connect

    def _permitted(self, order: to_agent.Permit) -> None:
        if self._agent.records is not None:
            self._agent.records.permit(order)

    def _refused(self, order: to_agent.Refused) -> None:
        epoch = self._agent.epoch
        if epoch is not None:
            self._agent.manager_watch.leave_unprotected(
                epoch, f"the manager refuses this node: {order.reason}"
            )

    # -- its ranks ---------------------------------------------------------------------------------

    def _rebuild(self, epoch: Epoch, order: to_rank.Rebuild) -> None:
        epoch.generation = order.generation
        self._agent.tell_ranks(epoch, order)

    def _resume(self, epoch: Epoch, order: to_rank.Resume) -> None:
        self._agent.protect(epoch)
        for rank in epoch.ranks.values():
            rank.blank = False
        self._agent.standby.moved()
        self._agent.tell_ranks(epoch, order)

    def _release(self, epoch: Epoch, order: to_rank.Release) -> None:
        epoch.released = max(epoch.released, order.step)
        self._agent.tell_ranks(epoch, order)

    def _pause(self, epoch: Epoch, order: to_rank.Pause | to_rank.Continue) -> None:
        pause = order if isinstance(order, to_rank.Pause) else None
        epoch.passing, self._paused_by = pause is not None and pause.passing, self._agent.obeyed
        epoch.for_move = epoch.passing and pause is not None and pause.moving
        log.info("%s, ordered in term %d", order, self._agent.obeyed[0])
        self._agent.monitor.pause(epoch, None if pause is None else pause.step)
        self._agent.tell_ranks(epoch, order)

    def look_at_manager(self) -> None:
        """End a temporary pause that an earlier manager ordered."""
        epoch = self._agent.epoch
        if epoch is not None and epoch.passing and self._paused_by != self._agent.obeyed:
            self._pause(epoch, to_rank.Continue())

    def _interruption(self, epoch: Epoch, order: to_rank.Interrupt) -> None:
        if order.interruption > epoch.interruption:
            epoch.moving, epoch.moves_to, epoch.former = epoch.for_move, "", ""
        epoch.interruption = max(epoch.interruption, order.interruption)
        epoch.page.interrupt(order.interruption)
        for rank in epoch.ranks.values():
            self._agent.tell_rank(rank, order)
        now = time.monotonic()
        for rank in epoch.ranks.values():
            if rank.over is not None or rank.interrupted >= order.interruption or not rank.joined:
                continue
            view = epoch.page.read(rank.local)
            if view.phase in TRAINING or view.phase in (slot.COMMITTED, slot.SETUP, slot.DONE):
                # user code may take the time that it has left before it counts as hung, wherever it
                # is; the manager adds its own grace
                left = (
                    self._agent.monitor.watchdog.left(view, now)
                    if view.phase in (*TRAINING, slot.COMMITTED)
                    else BETWEEN_STEPS
                )
                self._agent.tell(
                    from_agent.RankBusy(
                        rank.number, rank.incarnation, order.interruption, float(left)
                    )
                )

    def _save_state(
        self,
        epoch: Epoch,
        order: to_rank.RecordState | to_rank.SaveState | to_rank.RenameCheckpoint,
    ) -> None:
        rank = epoch.find(order.rank)
        if rank is not None:
            self._agent.tell_rank(rank, order)

    def _save_records(self, epoch: Epoch, order: to_agent.SaveRecords) -> None:
        dumping.save_records(order, self._agent.node, epoch, self._agent.records, self._tell_later)

    def _tell_later(self, message: Any) -> None:
        """Send to the manager, from another thread."""
        self._agent.call(lambda: self._agent.tell(message))

    def _keep_records(self, epoch: Epoch, order: to_agent.KeepRecords) -> None:
        agent = self._agent
        if order.node == agent.node and agent.records is not None:
            agent.keepers = order.keepers
            agent.records.keep_at(order.at)

    def _find(self, epoch: Epoch, number: int) -> Rank | None:
        rank = epoch.find(number)
        if rank is None:
            log.error("the manager named rank %d, which is not on this node", number)
        return rank

    def _replace(self, epoch: Epoch, order: to_agent.Replace) -> None:
        if (rank := self._find(epoch, order.rank)) is not None:
            self._agent.processes.replace(epoch, rank, order.incarnation)

    def _kill(self, epoch: Epoch, order: to_agent.Kill) -> None:
        agent, rank = self._agent, self._find(epoch, order.rank)
        if rank is None or order.incarnation != rank.incarnation:
            return
        if rank.over is not None:
            agent.deaths.tell_end(rank)  # the manager knows it, or should
            return
        log.warning("rank %d is killed: %s", rank.number, order.reason)
        rank.killed = order.reason

        def end() -> None:
            agent.processes.end(epoch, rank, order.incarnation)

        if order.stacks and rank.process is not None:
            agent.monitor.with_stacks(epoch, rank, end)
        else:
            end()

    def _restart_all(self, epoch: Epoch, order: to_agent.RestartAll) -> None:
        if dict(order.epochs).get(self._agent.node) == epoch.number:
            self._agent.decide(Verdict("restart", order.reason, order))
