"""torchrun's agent with taskd inside: a subclass of LocalElasticAgent, installed at one point.

torch starts, monitors and stops the ranks as always. Under protection the death of a rank is not a
failure of the group while the manager repairs it. All ranks are restarted by the manager's order;
torch decides alone only while no manager has answered.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import Any, NoReturn

import torch.distributed.elastic.multiprocessing.api as multiprocessing
import torch.distributed.launcher.api as launcher
from msgspec.structs import replace
from torch.distributed import DistNetworkError
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext

from taskd import logs, settings
from taskd.adaptor import contexts, rendezvous, restarts, script, starter, stopping, stores
from taskd.adaptor.arrival import comes_late, meet
from taskd.adaptor.contexts import Adopted, ForkedRanks
from taskd.adaptor.failures import Failures
from taskd.adaptor.launcher import last_words, stay, supervise
from taskd.adaptor.launcher import status as status_of
from taskd.adaptor.place import Place
from taskd.agent.ranks.processes import signal_group
from taskd.agent.standby import Order
from taskd.messages import to_agent
from taskd.messages.values import FaultCount
from taskd.protocol.addresses import Address
from taskd.settings import pod_info

log = logging.getLogger("taskd.agent")

LEFT = "a signal has asked the job to leave, and its ranks have ended by themselves, with status 0"


class TaskdElasticAgent(LocalElasticAgent):
    """torch's agent of a node, with taskd's agent in a thread."""

    def __init__(self, spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
        contexts.as_program(spec)
        if isinstance(spec.entrypoint, str) and (
            why := script.refusal(spec.entrypoint, tuple(map(str, spec.args)))
        ):
            raise SystemExit(f"taskd: {why}")
        super().__init__(spec, *args, **kwargs)
        try:
            place = self._place = Place(spec, self._worker_group)
            self._supervisor = supervise(
                place.manager,
                place.node if place.node >= 0 else os.environ.get("RANK", "0"),
                place.most_nodes,
                settings.unprotected(os.environ),
            )
            agent = self._supervisor.agent
            agent.about = replace(agent.about, command=contexts.command(spec, sys.argv))
            grace = settings.ends_gracefully(pod_info.environment(os.environ))
        except settings.BadSetting as error:
            # one line, without torch's traceback
            raise SystemExit(f"taskd: {error}") from None
        if place.rendezvous is not None:
            place.rendezvous.supervisor = self._supervisor
        self._last_signal = signal.SIGTERM if grace else signal.SIGKILL
        self._failures = Failures(self._supervisor)
        self._faults_allowed = restarts.faults_allowed(spec.max_restarts)
        self._meeting = stores.Meeting(self._make_store)
        self._epoch = -1
        # of a standby: the node that it has taken over or prepares
        self._order: Order | None = None
        self._taking = False  # the order has not been begun
        # the last restart, which the manager has ordered: torch has no rendezvous for it
        self._restart: to_agent.RestartAll | None = None
        self._why = ""  # why the job ends
        self._ending: to_agent.Ending = "failed"
        self._moved = False  # the job goes on without this node
        self._too_few: str | None = None  # why launchers that have met are not protected

    def _make_store(self) -> tuple[Any, Address]:
        return stores.make(self._place.host(), settings.port_range(os.environ))

    # -- torch's hooks -----------------------------------------------------------------------------

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Prepare the ranks' environments; torch calls this just before it starts them."""
        super()._setup_local_watchdog(envs)
        if self._restart is not None:
            # the ranks meet at the store under this number; launchers may have counted differently
            for environment in envs.values():
                environment["TORCHELASTIC_RESTART_COUNT"] = str(self._restart.attempt)
            self._epoch = self._restart.attempt
        else:
            self._use_fresh_store(envs)
        had = self._worker_group.spec.max_restarts - self._remaining_restarts
        self._supervisor.agent.faults = FaultCount(had, self._faults_allowed)
        stopping.starting()
        self._prepared = False
        if why := contexts.function(self._worker_group.spec) or self._too_few:
            log.warning("not protected: %s", why)
            return
        if self._restart is None:
            self._epoch += 1
        try:
            self._supervisor.prepare(self._worker_group.group_rank or 0, self._epoch, envs)
            self._prepared = True
        except OSError as error:
            log.error(
                "this node's ranks are not protected: shared memory cannot be made (%s); make room"
                " in /dev/shm",
                error,
            )

    def _use_fresh_store(self, envs: dict[int, dict[str, str]]) -> None:
        """Give restarted ranks a new store to meet in."""
        first = next(iter(envs.values()))
        attempt = first["TORCHELASTIC_RESTART_COUNT"]
        group = self._worker_group
        if attempt == "0" or first["TORCHELASTIC_USE_AGENT_STORE"] != "True" or group.store is None:
            return
        host, port = self._meeting.arrange(group.store, attempt, group.group_rank == 0)
        for environment in envs.values():
            environment.update(MASTER_ADDR=host, MASTER_PORT=str(port))

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        order, restart = self._order, self._restart
        if not self._taking and restart is None:
            try:
                meet(lambda: LocalElasticAgent._rendezvous(self, worker_group), self._place)
            except DistNetworkError as error:
                if "EADDRINUSE" not in str(error):
                    raise
                raise SystemExit(
                    f"taskd: the launchers cannot meet on this machine ({error}): another program"
                    " has the port. Give the job another --master_port (or --rdzv_endpoint), the"
                    " same on all nodes"
                ) from None
            self._too_few = self._place.settle()
            if self._place.node < 0:
                logs.setup(f"agent-{worker_group.group_rank}")
            return
        # no rendezvous: which node has which ranks is known
        spec, group = worker_group.spec, worker_group
        node, nodes = group.group_rank or 0, group.group_world_size or 1
        ranks, world_size = tuple(w.global_rank for w in group.workers), group.workers[0].world_size
        if self._taking and order is not None:
            node, nodes, ranks, world_size = order.node, order.nodes, order.ranks, order.world_size
        place: Any = group  # torch annotates these as None only
        place.workers = [
            Worker(
                local,
                global_rank=rank,
                role_rank=rank,
                world_size=world_size,
                role_world_size=world_size,
            )
            for local, rank in enumerate(ranks)
        ]
        place.store, place.group_rank, place.group_world_size = (
            self._supervisor.agent.store,
            node,
            nodes,
        )
        place.master_addr, place.master_port = (
            spec.master_addr or "127.0.0.1",
            spec.master_port or 0,
        )
        if restart is not None and not self._taking:
            place.master_addr, place.master_port = self._meeting_place(restart)

    def _meeting_place(self, restart: to_agent.RestartAll) -> Address:
        """The store where restarted ranks meet; the agent whose store the manager named makes
        it."""
        agent = self._supervisor.agent
        ours = restart.store == agent.addresses[0]
        try:
            board = agent.store if ours else stores.reach(restart.store)
            return self._meeting.arrange(board, restart.attempt, ours)
        except RuntimeError as error:
            # That node was lost meanwhile. The manager has ordered, or will order, another restart,
            # for which this node must be there: ranks that wait in vain are ended by it.
            log.warning("the store of attempt %d is gone: %s", restart.attempt, error)
            return restart.store

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        try:
            if self._taking and self._order is not None:
                self._taking = False
                return self._take_over(worker_group, self._order)
            self._failures.starting()
            ids = self._start(
                worker_group, ForkedRanks if settings.fork(os.environ) else SubprocessContext
            )
            if self._prepared and isinstance(self._pcontext, SubprocessContext):
                ranks = [
                    w.global_rank for w in sorted(worker_group.workers, key=lambda w: w.local_rank)
                ]
                self._supervisor.begin(
                    self._pcontext,
                    ranks,
                    self._make_store,
                    worker_group.group_world_size or 1,
                )
            return ids
        finally:
            stopping.started()

    def _take_over(self, worker_group: WorkerGroup, order: Order) -> dict[int, Any]:
        """Take a node over: torch makes everything but the processes, which the agent starts as
        replacements."""
        ids = self._start(worker_group, Adopted)
        if not self._prepared:
            raise RuntimeError(
                "shared memory cannot be made: this standby cannot take over a node; make room in"
                " /dev/shm"
            )
        standby = self._supervisor.agent.standby
        if isinstance(order, to_agent.Prepare):
            standby.get_ready(order, self._pcontext)
        else:
            standby.take_over(order, self._pcontext)
        return ids

    def _start(self, worker_group: WorkerGroup, kind: type[SubprocessContext]) -> dict[int, Any]:
        """Start the ranks as torch does, with a context of that kind."""
        with contexts.used(kind):
            started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _exit_barrier(self) -> None:
        """Wait for all nodes through the manager: torch would wait at a store on node 0, which may
        be lost, for nodes that may have been replaced."""
        known = self._restart is not None or self._order is not None
        if (self._worker_group.group_world_size or 1) > 1 and (known or self._supervisor.managed):
            self._supervisor.farewell(self._exit_barrier_timeout)
        else:
            super()._exit_barrier()  # type: ignore[no-untyped-call]

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        verdict = self._supervisor.verdict()
        if not self._supervisor.agent.standby.holds(self._order):
            return self._stand_down()
        if verdict.what == "wait":
            return RunResult(state=WorkerState.HEALTHY)
        if self._supervisor.protecting:
            self._failures.protected()
        if verdict.restart is not None:
            return self._begin_anew(verdict.restart)
        if verdict.what == "give up":
            self._moved = verdict.moved
            return self._give_up(verdict.reason, verdict.ending)
        if self._pcontext is not None:
            pids = self._pcontext.pids()  # torch does not know replacements' pids
            for worker in worker_group.workers:
                worker.id = pids[worker.local_rank]
        result: RunResult = super()._monitor_workers(worker_group)
        if not result.is_failed():
            return result
        if self._supervisor.managed:
            return RunResult(state=WorkerState.HEALTHY)  # torch has seen it before the manager
        if not self._supervisor.protecting and (why := self._failures.defect(result.failures)):
            return self._give_up(why, "useless")
        if self._restart is not None:
            # torch would start a new rendezvous with the other launchers, which may be gone
            why = "The job ends: a rank has failed, unprotected, after all ranks were restarted"
            return self._give_up(why)
        return result

    def _begin_anew(self, restart: to_agent.RestartAll) -> RunResult:
        """Restart all ranks as ordered, unless that cannot help or is not allowed."""
        if not self._supervisor.protecting and (
            why := self._failures.in_vain(self._pcontext, restart)
        ):
            return self._give_up(why, "useless")
        most = self._worker_group.spec.max_restarts
        self._remaining_restarts = most - self._supervisor.agent.faults.had
        if self._remaining_restarts <= 0:
            why = f"The job ends: {restart.reason}, and --max_restarts {most} is used up"
            return self._give_up(why)
        self._restart = restart
        return RunResult(state=WorkerState.UNHEALTHY)

    def _end(self, why: str, ending: to_agent.Ending) -> NoReturn:
        """Leave with why the job ends as the last lines on standard error: nothing may come after
        the reason, and torch's report would name a rank that had not failed, or the right one
        again. Raises SystemExit."""
        print(f"\ntaskd: {why}\n{last_words(os.environ)}", file=sys.stderr, flush=True)
        self._why, self._ending = why.partition("\n")[0], ending  # for the manager
        raise SystemExit(status_of(ending, self._moved))

    def _stand_down(self) -> RunResult:
        """End a standby's unneeded preparations; `run` then waits for the next order."""
        self._remaining_restarts = 0
        self._shutdown(signal.SIGKILL)
        return RunResult(state=WorkerState.FAILED)

    def _give_up(self, reason: str, ending: to_agent.Ending = "failed") -> NoReturn:
        """End the job at the end of the ladder: no restart, and one paragraph. Raises
        SystemExit."""
        self._remaining_restarts = 0
        if ending == "failed" and self._supervisor.left_early(False):
            reason, ending = LEFT, "saved"
        self._failures.keep_error_file(self._pcontext)
        multiprocessing.logger.setLevel(logging.ERROR)  # it has a line for each rank that it kills
        self._shutdown(self._last_signal)
        self._end(reason, ending)

    def _shutdown(self, *arguments: Any, **more: Any) -> None:
        self._supervisor.stopping()
        # the signal, and what differs between torch's versions: is_restart or timeout
        super()._shutdown(*arguments, **more)

    def _hurry(self) -> None:
        """Kill the ranks, which have been asked to end. In a signal handler: takes no lock."""
        for handler in getattr(self._pcontext, "subprocess_handlers", {}).values():
            if handler.proc.returncode is None:
                signal_group(handler.proc, signal.SIGKILL)

    def run(self, role: str = "default_role") -> RunResult:
        ok, why, stopped = False, "", False
        supervisor = self._supervisor
        stopping.begin(self._hurry, supervisor.asked_to_leave, supervisor.preemption)
        for found, remedy in starter.warnings():
            log.warning("%s: %s", found, remedy)
        try:
            if settings.fork(os.environ) or settings.standby(os.environ):
                spec = self._worker_group.spec
                self._supervisor.warm_up(spec.entrypoint, spec.args)
            late = comes_late(self._place, self._supervisor.agent.keys)
            waits = late or settings.standby(os.environ)
            result = None if waits else super().run(role)
            if result is None or self._supervisor.agent.standby.idle:
                result = self._stand_by(role)
            ok = not result.is_failed()
            if ok and self._supervisor.left_early(True):
                self._end(LEFT, "saved")
            why = self._why or ("" if ok else f"ranks {sorted(result.failures)} failed")
            return result
        except SignalException as error:
            why, stopped = f"the launcher was stopped by {error.sigval.name}", True
            raise
        except BaseException as error:
            why = self._why or f"{type(error).__name__}: {error}"
            raise
        finally:
            stopping.leaving()
            self._supervisor.close(ok, why, stopped, self._ending)
            stopping.left()
            stay(self._worker_group.group_rank or 0, self._moved)

    def _stand_by(self, role: str) -> RunResult:
        spec, standby = self._worker_group.spec, self._supervisor.agent.standby
        while True:
            self._remaining_restarts = spec.max_restarts
            log.info("standby: waiting for a node to take over")
            order = self._order = self._supervisor.stand_by(
                spec.local_world_size, self._place.nodes, self._make_store
            )
            if order is None:
                if why := self._supervisor.agent.manager_watch.needless:
                    raise SystemExit(f"taskd: {why} (TASKD_MANAGER_WAIT): it leaves")
                return RunResult(state=WorkerState.SUCCEEDED)
            self._epoch, self._taking = order.epoch - 1, True
            result: RunResult = super().run(role)
            if standby.holds(order):
                return result


def install() -> None:
    """Make torch's launcher use taskd's agent. Idempotent."""
    launcher.LocalElasticAgent = TaskdElasticAgent  # type: ignore[misc]
    rendezvous.install()
    restarts.install()
    stopping.install()


__all__ = ["TaskdElasticAgent", "install"]
