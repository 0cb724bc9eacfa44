"""torchrun's agent with taskd inside: a subclass of LocalElasticAgent, put in place at one point.

torch starts, monitors and stops the ranks as it always does. Under protection a rank that dies is
not a failure of the group while the manager repairs it; only when the ladder has come to its end,
or a script never called protect(), does torch hear of it.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist
import torch.distributed.elastic.multiprocessing as multiprocessing
import torch.distributed.launcher.api as launcher
from torch.distributed.elastic.agent.server.api import (
    RunResult,
    Worker,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException, SubprocessContext
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from taskd import logs, settings
from taskd.adaptor import restarts, stopping
from taskd.agent import asking
from taskd.agent.processes import Handler, Ordered
from taskd.agent.replacements import runs_python
from taskd.agent.standby import Order
from taskd.agent.supervisor import Supervisor
from taskd.agent.verdict import Verdict
from taskd.agent.watchdog import Limits
from taskd.core import set_up
from taskd.core.set_up import Failure
from taskd.messages import to_agent
from taskd.protocol import keys, secret

log = logging.getLogger("taskd.agent")

# that launchers may take to stop their ranks and come to a restart; torch gives ranks 30 s to end
MEET = timedelta(seconds=120)
# this process has started the job's manager: the job is at its beginning, and the node is ours
has_manager = False


class TaskdElasticAgent(LocalElasticAgent):
    """See the module docstring."""

    def __init__(self, spec: WorkerSpec, *args: Any, **kwargs: Any) -> None:
        super().__init__(spec, *args, **kwargs)
        node = self._node()
        logs.setup(f"agent-{node if node >= 0 else os.environ.get('RANK', '0')}")
        for notice in settings.check(os.environ):
            log.info("%s", notice)  # the manager has the same environment, and warns
        job = self._job = settings.job_id(os.environ)
        port = settings.manager_address({**os.environ, "MASTER_ADDR": ""})[1]
        try:
            self._keys = secret.for_job(job, os.environ, port, self._most_nodes)
        except keys.BadSecret as error:
            # a line to read, and no traceback of torch's
            raise SystemExit(f"taskd: {error}") from None
        self._supervisor = Supervisor(
            address=self._manager_address,
            keys=self._keys,
            job=job,
            manager_wait=settings.manager_wait(os.environ),
            preload=settings.preload(os.environ),
            limits=Limits(least=settings.hang_limit(os.environ)),
            unprotected=settings.unprotected(os.environ),
        )
        self._set_up = set_up.SetUp()
        self._began = 0.0  # when the ranks were started last
        self._epoch = -1
        # a standby: the node that it has taken over, or gets ready for
        self._order: Order | None = None
        self._taking = False  # and it has not begun to
        self._attempt_store: Any = None  # where restarted ranks meet, if it is here
        # the last one that torch's own rendezvous has no part in
        self._restart: to_agent.RestartAll | None = None

    def _manager_address(self) -> tuple[str, int]:
        group = self._worker_group
        host, port = settings.manager_address({**os.environ, "MASTER_ADDR": ""})
        if settings.manager_is_named(os.environ):
            return host, port
        if group.group_rank == 0 or group.group_world_size == 1:
            return settings.bind_address(os.environ), port
        return str(self._worker_group.spec.master_addr or group.master_addr), port

    @property
    def _nodes(self) -> int:
        """Of the job; known to static rendezvous, which the documented launchers use."""
        return int(getattr(self._worker_group.spec.rdzv_handler, "world_size", 1))

    def _node(self) -> int:
        """Of the job; -1 where the launchers will agree on that."""
        handler = self._worker_group.spec.rdzv_handler
        if hasattr(handler, "world_size"):
            return int(getattr(handler, "rank", -1))
        return 0 if getattr(getattr(handler, "settings", None), "max_nodes", 0) == 1 else -1

    @property
    def _most_nodes(self) -> int:
        """That the job may have, in whatever rendezvous; a standby's has several."""
        handler = self._worker_group.spec.rdzv_handler
        most = int(getattr(getattr(handler, "settings", None), "max_nodes", 0)) or self._nodes
        return max(most, 2) if settings.standby(os.environ) else most

    def _comes_late(self) -> bool:
        """Whether this launcher was started for a job that is under way, as a scheduler does with a
        pod that it has replaced: nobody would meet it. Asked of the manager where there is one; at
        the start of a job that is not always so. Ends the launcher where its node has another one:
        this is a second job on the port of the first."""
        if has_manager or settings.standby(os.environ):
            return False
        spec, node = self._worker_group.spec, self._node()
        address = settings.manager_address(
            {**os.environ, "MASTER_ADDR": str(spec.master_addr or "")}
        )
        if node == 0 and not settings.manager_is_named(os.environ) and self._nodes == 1:
            address = settings.bind_address(os.environ), address[1]
        answer = asking.arrive(address, self._keys, self._job, node)
        if answer is None:
            return False
        if answer.protected and self._nodes > 1 and "recover" in settings.ladder_from(os.environ):
            log.warning(
                "the job is under way: this launcher waits for a node that is lost, as a standby"
            )
            os.environ["TASKD_STANDBY"] = "on"
            return True
        if answer.taken:
            sys.exit(f"taskd: {asking.second(address, self._job, node)}")
        return False

    def _make_store(self) -> tuple[Any, tuple[str, int]]:
        """A rendezvous store of this agent's, for the generations that the manager places here."""
        host = "127.0.0.1"
        if settings.standby(os.environ) or (self._worker_group.group_world_size or 1) > 1:
            host = settings.own_address(os.environ) or _address_towards(self._manager_address())
        # a listening socket of one family: behind torch's own, of both, every client's address is
        # looked up in the name service, and a name server that does not answer then holds up every
        # rebuild for 5 s
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=4096)
        port = listener.getsockname()[1]
        store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        return store, (host, port)

    # -- torch's hooks -----------------------------------------------------------------------------

    def _setup_local_watchdog(self, envs: dict[int, dict[str, str]]) -> None:
        """Called with the ranks' environments as torch made them, just before they are started."""
        super()._setup_local_watchdog(envs)
        if self._restart is not None:
            # the number under which the ranks meet at the store; launchers may have counted
            # otherwise
            for environment in envs.values():
                environment["TORCHELASTIC_RESTART_COUNT"] = str(self._restart.attempt)
        else:
            self._use_fresh_store(envs)
        self._epoch += 1
        stopping.starting()
        try:
            self._supervisor.prepare(self._worker_group.group_rank or 0, self._epoch, envs)
            self._prepared = True
        except OSError as error:
            log.error(
                "this node's ranks are not protected, shared memory cannot be made: %s; make room"
                " in /dev/shm",
                error,
            )
            self._prepared = False

    def _use_fresh_store(self, envs: dict[int, dict[str, str]]) -> None:
        """Give restarted ranks a store of their own to meet in. torch 2.13 lets them meet where the
        attempt before did, and gloo then finds addresses of dead processes there: of six plain
        restarts two hung and two needed several attempts."""
        first = next(iter(envs.values()))
        attempt = first["TORCHELASTIC_RESTART_COUNT"]
        group = self._worker_group
        if attempt == "0" or first["TORCHELASTIC_USE_AGENT_STORE"] != "True" or group.store is None:
            return
        host, port = self._meet(group.store, attempt, ours=group.group_rank == 0)
        for environment in envs.values():
            environment.update(MASTER_ADDR=host, MASTER_PORT=str(port))

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        order, restart = self._order, self._restart
        if not self._taking and restart is None:
            super()._rendezvous(worker_group)
            return
        # nobody to meet: who has which ranks is known
        spec, group = worker_group.spec, worker_group
        node, nodes = group.group_rank or 0, group.group_world_size or 1
        ranks, world_size = tuple(w.global_rank for w in group.workers), group.workers[0].world_size
        if self._taking and order is not None:
            node, nodes, ranks, world_size = order.node, order.nodes, order.ranks, order.world_size
        place: Any = group  # torch's annotations know these as None only
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
        place.store, place.group_rank, place.group_world_size = self._supervisor.store, node, nodes
        place.master_addr, place.master_port = (
            spec.master_addr or "127.0.0.1",
            spec.master_port or 0,
        )
        if restart is not None and not self._taking:
            place.master_addr, place.master_port = self._meeting_place(restart)

    def _meeting_place(self, restart: to_agent.RestartAll) -> tuple[str, int]:
        """A store for this restart only: in one of before gloo finds addresses of dead processes.
        Whose store the manager has named makes it, and tells there where it is."""
        ours = restart.store == self._supervisor.addresses[0]
        board = (
            self._supervisor.store
            if ours
            else dist.TCPStore(
                *restart.store, is_master=False, wait_for_workers=False, timeout=MEET
            )
        )
        return self._meet(board, restart.attempt, ours)

    def _meet(self, board: Any, attempt: int | str, ours: bool) -> tuple[str, int]:
        """Where the ranks of a whole restart meet: in a store made for it, by `ours` launcher,
        which the others find by `board`."""
        key = f"taskd/attempt/{attempt}"
        if ours:
            self._attempt_store, (host, port) = self._make_store()
            board.set(key, f"{host} {port}")
        host, number = board.get(key).decode().split()
        return host, int(number)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        try:
            if self._taking and self._order is not None:
                self._taking = False
                return self._take_over(worker_group, self._order)
            self._began = time.monotonic()
            ids = self._start(
                worker_group, _Forked if settings.fork(os.environ) else SubprocessContext
            )
            if self._prepared and isinstance(self._pcontext, SubprocessContext):
                ranks = [
                    w.global_rank for w in sorted(worker_group.workers, key=lambda w: w.local_rank)
                ]
                self._supervisor.begin(
                    self._pcontext, ranks, self._make_store, worker_group.group_world_size or 1
                )
            return ids
        finally:
            stopping.started()

    def _take_over(self, worker_group: WorkerGroup, order: Order) -> dict[int, Any]:
        """torch makes everything but the processes, which the agent starts as replacements."""
        ids = self._start(worker_group, _Adopted)
        if not self._prepared:
            raise RuntimeError("shared memory cannot be made: this standby cannot take a node over")
        standby = self._supervisor.standby
        if isinstance(order, to_agent.Prepare):
            standby.get_ready(order, self._pcontext)
        else:
            standby.take_over(order, self._pcontext)
        return ids

    def _start(self, worker_group: WorkerGroup, kind: type[SubprocessContext]) -> dict[int, Any]:
        """As torch does, with a context of that kind."""
        multiprocessing.SubprocessContext = kind  # type: ignore[misc]
        try:
            return super()._start_workers(worker_group)
        finally:
            multiprocessing.SubprocessContext = SubprocessContext  # type: ignore[misc]

    def _exit_barrier(self) -> None:
        """torch waits at a store on node 0, which may be gone, for nodes that may have been
        replaced; the manager knows them all."""
        known = self._restart is not None or self._order is not None
        if (self._worker_group.group_world_size or 1) > 1 and (
            known or self._supervisor.protecting
        ):
            self._supervisor.farewell(self._exit_barrier_timeout)
        else:
            super()._exit_barrier()

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        verdict = self._supervisor.verdict()
        if self._order is not None and not self._supervisor.standby.holds(self._order):
            return self._stand_down()
        if verdict.what == "hold":
            return RunResult(state=WorkerState.HEALTHY)
        if self._supervisor.protecting:
            self._set_up.passed()
        if verdict.what == "restart":
            if not self._supervisor.protecting and (why := self._in_vain(verdict.reason)):
                return self._give_up(Verdict("give up", why))
            restart = verdict.restart
            if restart is not None and restart.attempt:
                self._restart = restart
            elif self._restart is not None:
                return self._give_up(
                    Verdict(
                        "give up",
                        "all ranks shall meet as at the start, where launchers are that may be"
                        " gone",
                    )
                )
            return RunResult(state=WorkerState.UNHEALTHY)
        if verdict.what == "give up":
            return self._give_up(verdict)
        if self._pcontext is not None:
            pids = self._pcontext.pids()  # replacements have other pids than torch remembers
            for worker in worker_group.workers:
                worker.id = pids[worker.local_rank]
        result = super()._monitor_workers(worker_group)
        if (
            result.is_failed()
            and not self._supervisor.protecting
            and (why := self._defect(result.failures))
        ):
            self._remaining_restarts = 0
            self._say(why)
        elif result.is_failed() and self._restart is not None:
            # torch would have this node's ranks meet the others as it did at the start, and those
            # who were there may be gone
            return self._give_up(
                Verdict("give up", "a rank has failed, unprotected, after all ranks were restarted")
            )
        return result

    def _dead(self) -> dict[int, ProcessFailure]:
        """Ranks whose process has failed, as torch reports them."""
        context, failures = self._pcontext, {}
        assert isinstance(context, SubprocessContext)
        for rank in self._supervisor.dead():
            process = context.subprocess_handlers[rank.local].proc
            code = process.poll()
            failures[rank.number] = ProcessFailure(
                local_rank=rank.local,
                pid=process.pid,
                exitcode=code if code not in (None, 0) else 1,
                error_file=context.error_files[rank.local],
            )
        return failures

    def _say(self, why: str) -> None:
        """Why the job ends: to people, and its first line to the manager."""
        print(f"\ntaskd: {why}\n", file=sys.stderr, flush=True)
        self._why = why.partition("\n")[0]

    def _in_vain(self, reason: str) -> str:
        """Why another start of unprotected ranks, which the manager has asked for, cannot help; ""
        where it may."""
        if dead := self._dead():
            return self._defect(dead)
        first = self._set_up.stuck(reason)
        times = set_up.LIMIT
        return f"The job ends: {times} starts in a row ended so: {first}" if first else ""

    def _defect(self, failures: dict[int, ProcessFailure]) -> str:
        """Why no further start can help after these failures of an unprotected one, with the first
        traceback; "" where it may."""
        told = [
            Failure(
                number, f.exitcode, _traceback(f) or self._supervisor.traceback(f.local_rank, f.pid)
            )
            for number, f in failures.items()
        ]
        first = self._set_up.failed(told, time.monotonic() - self._began)
        if first is None:
            return ""
        return set_up.reason(first) + (
            f"\n\nRank {first.rank}, the first time:\n{first.traceback.rstrip()}"
            if first.traceback
            else ""
        )

    def _stand_down(self) -> RunResult:
        """What this standby has prepared is not needed: torch comes to its end, and `run` waits for
        the next order."""
        self._remaining_restarts = 0
        self._shutdown(signal.SIGKILL)
        return RunResult(state=WorkerState.FAILED)

    def _give_up(self, verdict: Verdict) -> RunResult:
        """The end of the ladder: no restart, one paragraph, and torch's own report of who
        failed."""
        self._remaining_restarts = 0
        context = self._pcontext
        assert isinstance(context, SubprocessContext)
        failures = self._dead()
        self._say(verdict.reason)
        self._supervisor.stopping()
        self._shutdown(signal.SIGKILL)
        if not failures:
            worker = self._worker_group.workers[0]
            failures[worker.global_rank] = ProcessFailure(
                local_rank=0, pid=int(worker.id or 0), exitcode=1, error_file=context.error_files[0]
            )
        return RunResult(state=WorkerState.FAILED, failures=failures)

    _why = ""

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._supervisor.stopping()
        super()._shutdown(death_sig, timeout)

    def run(self, role: str = "default_role") -> RunResult:
        ok, why = False, ""
        stopping.begin()
        try:
            if settings.fork(os.environ) or settings.standby(os.environ):
                spec = self._worker_group.spec
                self._supervisor.warm_up(spec.entrypoint, spec.args)
            late = self._comes_late()
            result = (
                self._stand_by(role) if late or settings.standby(os.environ) else super().run(role)
            )
            ok = not result.is_failed()
            why = self._why or ("" if ok else f"ranks {sorted(result.failures)} failed")
            return result
        except SignalException as error:
            why = f"the launcher was told to stop by {error.sigval.name}"
            raise
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            stopping.leaving()
            self._supervisor.close(ok, why)
            stopping.left()

    def _stand_by(self, role: str) -> RunResult:
        spec, standby = self._worker_group.spec, self._supervisor.standby
        while True:
            log.info("standby: waiting for a node to take over")
            order = self._order = self._supervisor.stand_by(
                spec.local_world_size, self._nodes, self._make_store
            )
            if order is None:
                return RunResult(state=WorkerState.SUCCEEDED)
            self._epoch, self._taking = order.epoch - 1, True
            result = super().run(role)
            if standby.holds(order):
                return result
            self._remaining_restarts = spec.max_restarts


class _Adopted(SubprocessContext):
    """torch's bookkeeping of processes that it does not start itself."""

    def _start(self) -> None:
        handlers: dict[int, Any] = {n: Handler(Ordered(), n) for n in range(self.nprocs)}
        self.subprocess_handlers = handlers


class _Forked(SubprocessContext):
    """The same where the agent forks them: Python scripts that are not bound to a NUMA node by the
    command that starts them."""

    def _start(self) -> None:
        prepared = "TASKD_AGENT" in self.envs[0]  # else there is no agent to tell
        if (
            prepared
            and runs_python(self.entrypoint, tuple(self.args[0]))
            and getattr(self, "_numa_options", None) is None
        ):
            _Adopted._start(self)  # type: ignore[arg-type]
        else:
            super()._start()


def install() -> None:
    """From now on torch's launcher makes our agent. Idempotent."""
    launcher.LocalElasticAgent = TaskdElasticAgent  # type: ignore[misc]
    restarts.install()
    stopping.install()


def _traceback(failure: ProcessFailure) -> str:
    """What torch's @record has written into the error file of a rank."""
    data: Any = failure.error_file_data
    for key in ("message", "extraInfo", "py_callstack"):
        data = data.get(key) if isinstance(data, dict) else None
    return data if isinstance(data, str) else ""


def _address_towards(peer: tuple[str, int]) -> str:
    """This node's address on the route to `peer`."""
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(peer)
        return str(probe.getsockname()[0])


__all__ = ["TaskdElasticAgent", "install"]
