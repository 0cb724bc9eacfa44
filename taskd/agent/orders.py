"""What an agent does when the manager orders it: pass it on to the ranks, pause and hold them, end
and replace their processes.

Used by the supervisor's thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from taskd.agent import dumping
from taskd.agent.processes import Forked, Handler
from taskd.agent.ranks import Epoch, Rank, pidfd
from taskd.agent.replacements import Order as Start
from taskd.agent.verdict import Verdict
from taskd.agent.watchdog import TRAINING
from taskd.cython_api import core
from taskd.messages import from_agent, to_agent, to_rank

if TYPE_CHECKING:
    from taskd.agent.supervisor import Supervisor

log = logging.getLogger("taskd.agent")

# seconds that a script may take where it is not in a loop of ours, before it sees a pause
BETWEEN_STEPS = 600.0


class Orders:
    def __init__(self, agent: Supervisor) -> None:
        self._agent = agent

    def obey(self, order: Any) -> None:
        agent, epoch = self._agent, self._agent.epoch
        if isinstance(order, to_agent.Fence):
            self._fenced(order)
        elif isinstance(order, (to_agent.Prepare, to_agent.TakeOver, to_agent.StandDown)):
            if order.agent != agent.name:
                log.error(
                    "%s of another agent, %s, is not obeyed", type(order).__name__, order.agent[:8]
                )
            elif isinstance(order, to_agent.StandDown):
                agent.standby.stand_down(order)
            else:
                agent.standby.ordered(order)
        elif isinstance(order, to_agent.End):
            agent.over.set()
            if agent.managers is not None:
                agent.managers.over = True
            agent.standby.leave()
        elif isinstance(order, to_agent.Permit):
            if agent.records is not None:
                agent.records.permit(order)
        elif isinstance(order, to_agent.Refused):
            if epoch is not None:
                agent.manager_watch.leave_unprotected(
                    epoch, f"the manager refuses this node: {order.reason}"
                )
        elif epoch is None:
            return
        elif isinstance(order, to_rank.Pause):
            self._pause(epoch, order)
        elif isinstance(order, (to_rank.Rebuild, to_rank.Restore, to_rank.Resume, to_rank.Release)):
            if isinstance(order, to_rank.Rebuild):
                epoch.generation = order.generation
            elif isinstance(order, to_rank.Release):
                epoch.released = max(epoch.released, order.step)
            elif isinstance(order, to_rank.Resume):
                agent.protect(epoch)
                for member in epoch.ranks.values():
                    member.blank = False
                agent.standby.moved()
            agent.tell_ranks(epoch, order)
        elif isinstance(order, to_rank.RollCall):
            agent.attention.roll_call(epoch, order)
        elif isinstance(order, to_agent.AskSteps):
            agent.attention.ask_steps(epoch, agent.node)
        elif isinstance(order, (to_rank.Hold, to_rank.Continue)):
            self._hold(epoch, order)
        elif isinstance(order, to_rank.Inject):
            agent.attention.inject(epoch, order)
        elif isinstance(order, to_rank.SaveState):
            rank = epoch.find(order.rank)
            if rank is not None:
                agent.tell_rank(rank, order)
        elif isinstance(order, to_agent.SaveRecords):
            dumping.save_records(order, agent.node, epoch, agent.records, self._tell_later)
        elif isinstance(order, to_agent.Seal):
            dumping.seal(order, self._tell_later)
        elif isinstance(order, to_agent.KeepRecords):
            if order.node == agent.node and agent.records is not None:
                agent.keeper = order.keeper
                agent.records.keep_at(order.at)
        elif isinstance(order, (to_agent.Replace, to_agent.Kill)):
            rank = epoch.find(order.rank)
            if rank is None:
                log.error("the manager speaks of rank %d, which is not on this node", order.rank)
            elif isinstance(order, to_agent.Replace):
                self.replace(epoch, rank, order.incarnation)
            elif order.incarnation == rank.incarnation and rank.over is not None:
                agent.deaths.tell_end(rank)  # it is known, or should be
            elif order.incarnation == rank.incarnation:
                log.warning("rank %d is ended: %s", rank.number, order.reason)
                if order.stacks and rank.process is not None:
                    agent.attention.with_stacks(
                        epoch, rank, lambda: self._end(epoch, rank, order.incarnation)
                    )
                else:
                    self._end(epoch, rank, order.incarnation)
        elif isinstance(order, to_agent.RestartAll):
            if dict(order.epochs).get(agent.node) == epoch.number:
                agent.decide(Verdict("restart", order.reason, order))
        elif isinstance(order, to_agent.GiveUp):
            agent.decide(Verdict("give up", order.reason))

    def _tell_later(self, message: Any) -> None:
        """From another thread."""
        self._agent.call(lambda: self._agent.tell(message))

    def _fenced(self, order: to_agent.Fence) -> None:
        """This agent has no part in the job any more: its ranks end now, the launcher leaves."""
        if self._agent.managers is None or order.agent != self._agent.managers.name:
            return
        self._agent.managers.over = True
        self._agent.standby.leave()
        reason = f"this node has been replaced: {order.reason}"
        if self._agent.decided is None or self._agent.decided.what != "give up":
            self._agent.decide(Verdict("give up", reason))
        for rank in self._agent.epoch.ranks.values() if self._agent.epoch else ():
            if rank.over is None:
                self.kill(rank)

    def _hold(self, epoch: Epoch, order: to_rank.Hold | to_rank.Continue) -> None:
        epoch.passing, self._held_by = (
            isinstance(order, to_rank.Hold) and order.passing,
            self._agent.obeyed,
        )
        log.info("%s, ordered in term %d", order, self._agent.obeyed[0])
        self._agent.attention.hold(epoch, order.step if isinstance(order, to_rank.Hold) else None)
        self._agent.tell_ranks(epoch, order)

    _held_by = (0, "")  # the manager that has ordered the last hold

    def look_at_manager(self) -> None:
        """Ranks that another manager wanted to stand for a moment go on."""
        epoch = self._agent.epoch
        if epoch is not None and epoch.passing and self._held_by != self._agent.obeyed:
            self._hold(epoch, to_rank.Continue())

    def _pause(self, epoch: Epoch, order: to_rank.Pause) -> None:
        epoch.pause = max(epoch.pause, order.pause)
        epoch.page.pause(order.pause)
        for rank in epoch.ranks.values():
            self._agent.tell_rank(rank, order)
        now = time.monotonic()
        for rank in epoch.ranks.values():
            if rank.over is not None or rank.paused >= order.pause or not rank.joined:
                continue
            view = epoch.page.read(rank.local)
            if view.phase in TRAINING or view.phase in (core.COMMITTED, core.SETUP, core.DONE):
                # user code may take what it has left before it counts as hung, anywhere; the
                # manager adds its own grace
                left = (
                    self._agent.attention.watchdog.left(view, now)
                    if view.phase in (*TRAINING, core.COMMITTED)
                    else BETWEEN_STEPS
                )
                self._agent.tell(
                    from_agent.RankBusy(rank.number, rank.incarnation, order.pause, float(left))
                )

    def _end(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        if rank.incarnation != incarnation or rank.over is not None or epoch.dropped:
            return
        self.kill(rank)
        if rank.process is None:  # it has not been started yet, and will be killed when it is
            self._agent.deaths.ended(epoch, rank, -signal.SIGKILL)

    def replace(self, epoch: Epoch, rank: Rank, incarnation: int) -> None:
        if incarnation <= rank.incarnation:
            return  # repeated
        # a dying process that nobody has seen end; it must not share the slot
        if rank.over is None:
            self.kill(rank)
        rank.forget_process()
        if isinstance(rank.process, subprocess.Popen):
            self._agent.retired.append(rank.process)
        rank.process = None  # what is still told about the old one is not about the new one
        rank.over, rank.incarnation, rank.joined, rank.damages = None, incarnation, True, 0
        rank.blank, rank.ready = True, False
        try:
            epoch.page.reset(rank.local)
        # its last process has been killed and is still being taken down; 5 s is far more than a
        # thread needs
        except OSError:
            epoch.page.wait_death(rank.local, 5000)
            epoch.page.reset(rank.local)
        self.start(rank)

    def start(self, rank: Rank) -> None:
        """Have the rank's present process started."""
        context = self._agent.context
        self._agent.replacements.start(
            Start(
                rank=rank.number,
                incarnation=rank.incarnation,
                entrypoint=context.entrypoint,
                arguments=tuple(str(a) for a in context.args[rank.local]),
                environment={
                    **os.environ,
                    **context.envs[rank.local],
                    "TASKD_INCARNATION": str(rank.incarnation),
                },
                stdout=context.stdouts[rank.local],
                stderr=context.stderrs[rank.local],
            )
        )

    def kill(self, rank: Rank) -> None:
        if rank.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.process.pid, signal.SIGKILL)

    def started(self, order: Start, process: Any) -> None:
        """Put the new process where torch's launcher looks for its rank, unless a newer one has
        been ordered meanwhile."""
        epoch = self._agent.epoch
        rank = (
            next((r for r in epoch.ranks.values() if r.number == order.rank), None)
            if epoch
            else None
        )
        ours = epoch is not None and order.environment.get("TASKD_VAULT") == str(epoch.directory)
        if (
            rank is None
            or not ours
            or rank.incarnation != order.incarnation
            or rank.over is not None
        ):
            process.send_signal(signal.SIGKILL)
            return
        handlers = self._agent.context.subprocess_handlers
        if not isinstance(handlers[rank.local], Handler):
            handlers[rank.local] = Handler(process, rank.local)
        elif not handlers[rank.local].take(process):
            return
        rank.process, rank.pidfd = process, pidfd(process.pid)
        what = f"replacement {rank.incarnation}" if rank.incarnation else "its first process"
        log.info("rank %d: %s is pid %d", rank.number, what, process.pid)
        self._agent.lines.process_known()

    def forked_ended(self, process: Forked, status: int) -> None:
        epoch = self._agent.epoch
        for rank in epoch.ranks.values() if epoch else ():
            if rank.process is process and epoch is not None:
                self._agent.deaths.ended(epoch, rank, status)
