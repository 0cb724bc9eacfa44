"""The launcher's interface to its agent: the launcher prepares, begins and stops epochs, and asks
`verdict()` what to do with its processes."""

from __future__ import annotations

import functools
import logging
import os
import re
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from taskd import raised, settings, stacks, trainers
from taskd.agent import device_info
from taskd.agent.agent import Agent
from taskd.agent.loop import Loop
from taskd.agent.ranks import shared_memory
from taskd.agent.ranks.model import Epoch, Rank, Verdict, pidfd
from taskd.agent.ranks.processes import adopt_orphans
from taskd.agent.ranks.replacements import runs_python
from taskd.agent.ranks.watchdog import HangLimits
from taskd.agent.standby import Find, Order
from taskd.cython_api import library_path
from taskd.cython_api.page import Page
from taskd.messages import from_agent, to_agent
from taskd.messages.envelope import STANDBY
from taskd.protocol import running_jobs
from taskd.protocol.keys import Keys
from taskd.records import dumps, sealed, store
from taskd.settings import pod_info

log = logging.getLogger("taskd.agent")

MakeStore = Callable[[], tuple[Any, tuple[str, int]]]  # a rendezvous store, and its address


class Supervisor:
    """Used by the launcher's thread."""

    def __init__(
        self,
        address: Callable[[], tuple[str, int]],
        keys: Keys,
        environ: Mapping[str, str],
        unprotected: bool = False,
        find: Find = lambda asked: None,
    ) -> None:
        """`address`: where the first manager is. `environ` has the settings. `unprotected`: if no
        manager is available, ranks train unprotected; otherwise the job ends. `find`: where the
        manager in charge is, if not at the address that was asked. Raises BadSetting."""
        self._address, self._find = address, find
        self._preload, self._ports = settings.preload(environ), settings.port_range(environ)
        self.agent = Agent(
            keys,
            settings.job(environ),
            settings.manager_wait(environ),
            HangLimits(least=settings.hang_limit(environ)),
            unprotected,
            device_info.make(environ),
            settings.preemption_signal(pod_info.environment(environ)),
            settings.grace_period(environ),
        )
        self._loop = Loop(self.agent)
        self._closing = False
        self._job_id, self._record = settings.job_id(environ), -1

    # -- epochs ------------------------------------------------------------------------------------

    def prepare(self, node: int, number: int, environments: dict[int, dict[str, str]]) -> None:
        """Make the shared memory of a new epoch and put its names into the ranks' environments,
        before they are started."""
        agent = self.agent
        agent.node = node
        # orphans of ranks and the zygote become our children: we see how they end, and can end them
        adopt_orphans()
        self._end_children()
        agent.drop_epochs()
        leaves_on = agent.leaving.signal
        common = {
            "TASKD_AGENT": agent.connections.name,
            "TASKD_PREEMPTION_SIGNAL": leaves_on.name if leaves_on is not None else settings.OFF,
            **self._preloading(),
        }
        agent.next = make_epoch(number, agent.keys.records, agent.job, environments, common)

    def _end_children(self, told: bool = False) -> None:
        """End what the current ranks have started, once these have ended; `told`: by SIGTERM."""
        for epoch in self.agent.epochs():
            self.agent.children.end_all(epoch, told)

    def _preloading(self) -> dict[str, str]:
        return preloading() if self._preload else {}

    def begin(self, context: Any, ranks: list[int], store: MakeStore, nodes: int) -> None:
        """Watch the processes, which run or are to be forked, and notify the manager. `store` is
        made once. `nodes`: of the job; if several, others can keep records."""
        self.agent.context = context
        processes = {
            local: (ranks[local], handler.proc if handler.proc.pid else None)
            for local, handler in context.subprocess_handlers.items()
        }
        self.warm_up(context.entrypoint, context.args[0])
        self._begin(processes, store, nodes)

    def lead(self, processes: dict[int, tuple[int, Any]], store: MakeStore, nodes: int) -> None:
        """The same for a launcher that starts single ranks itself. `processes`: by local rank, the
        rank and its process."""
        self.agent.starts = True
        self._begin(processes, store, nodes)

    def _begin(self, processes: dict[int, tuple[int, Any]], store: MakeStore, nodes: int) -> None:
        agent, epoch = self.agent, self.agent.next
        assert epoch is not None
        for local, (number, process) in processes.items():
            fd = pidfd(process.pid) if process is not None else None
            epoch.ranks[local] = Rank(number, local, process, fd, epoch.pipes[local])
        self._connect(agent.node, store, nodes)
        agent.adopt(epoch)
        agent.call(lambda: agent.begin(epoch))

    def warm_up(self, entrypoint: Any, arguments: tuple[Any, ...]) -> None:
        """Start the zygote, once, if the ranks can be forked. The arguments are torch's for the
        ranks."""
        if runs_python(entrypoint, tuple(arguments)):
            script = arguments[1] if arguments[1:] and arguments[1].endswith(".py") else ""
            reads = {trainers.VARIABLE: trainers.named(arguments), "TASKD_SCRIPT": script}
            self.warm(reads, "taskd.worker.process.forked")

    def warm(self, variables: dict[str, str], ranks: str) -> None:
        """Start the zygote, once, with these variables beside the launcher's. `ranks`: the module
        that imports what ranks need, see ranks/zygote.py."""
        # copied here: while this thread starts a rank, os.environ has the rank's variables
        environment = {**os.environ, **variables, **self._preloading()}
        start = functools.partial(self.agent.replacements.warm_up, environment, ranks)
        if self._loop.running:
            self.agent.call(start)
        else:
            start()

    def _connect(self, node: int, store: MakeStore, nodes: int) -> None:
        """Listen for other nodes and connect to the manager as `node`, once."""
        if not self._loop.running:
            self.agent.listen(*store(), nodes, self._ports)
            address = self._address()
            # held until this process ends: see running_jobs.py
            self._record = running_jobs.leave(self._job_id, *address)
            self.agent.connect(address, node)
            self._loop.start()

    def stand_by(self, ranks: int, nodes: int, store: MakeStore) -> Order | None:
        """Wait for a node to take over, or to prepare for; None if the job ends first. `ranks`: how
        many this agent can run."""
        self._connect(STANDBY, store, max(nodes, 2))
        return self.agent.standby.wait(ranks, self._find)

    def stopping(self) -> None:
        """The launcher is about to stop its processes: their ends are not faults."""
        if (epoch := self.agent.epoch) is not None and not epoch.dropped:
            epoch.page.ending()
        self.agent.stopping()

    @property
    def preemption(self) -> signal.Signals | None:
        """The signal that asks the job to leave."""
        return self.agent.leaving.signal

    def asked_to_leave(self, number: signal.Signals) -> bool:
        """The launcher has got this signal; returns whether the job saves its state for it, and the
        launcher has to go on. From a signal handler."""
        leaving = self.agent.leaving
        if number != leaving.signal or not (leaving.cause or leaving.possible):
            return False
        self.agent.call(lambda: leaving.asked(f"{number.name} to its launcher"))
        return True

    def left_early(self, ended: bool) -> bool:
        """Whether all ranks have left their loops, with status 0, since a signal has asked the job
        to leave. `ended`: all have ended so; the agent's thread may not have seen it yet."""
        return bool(self.agent.leaving.cause) and all(
            rank.quit or (ended and epoch.page.read(rank.local).step > epoch.released)
            for epoch in self.agent.epochs()
            for rank in epoch.ranks.values()
        )

    def farewell(self, limit: float) -> None:
        """Report that this node's ranks have ended well; wait at most `limit` seconds until all
        nodes have done so or the manager is gone."""
        agent = self.agent
        agent.left = True
        agent.call(lambda: agent.report(from_agent.AgentLeft(agent.node, True)))
        if not agent.over.wait(limit):
            log.warning("other nodes have not ended within %.0f s; this one leaves", limit)

    def close(
        self, ok: bool, why: str, stopped: bool = False, ending: to_agent.Ending = "failed"
    ) -> None:
        """End the agent: the launcher leaves. `stopped`: a signal has ended it; `ending`: how, if
        it is not `ok`. Idempotent."""
        if self._closing:
            return
        self._closing = True
        agent = self.agent
        agent.stopping()
        if self._loop.running:
            if agent.standby.room is None and not agent.left:
                left = from_agent.AgentLeft(agent.node, ok, why[:500], stopped, ending)
                agent.call(lambda: agent.report(left))
            self._loop.end()
        agent.replacements.close()
        if agent.records is not None:
            agent.records.close()
        agent.device_info.close()
        self._end_children(stopped)
        agent.drop_epochs()
        agent.connections.listener.close()
        running_jobs.withdraw(self._record)

    # -- the launcher's questions ------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """What the launcher must do with its processes now."""
        agent = self.agent
        for process in list(agent.retired):  # the agent's thread may append to it
            if process.poll() is not None:
                agent.retired.remove(process)
        epoch, decided = agent.epoch, agent.decided
        if decided is not None:
            return decided
        if agent.leaving.too_late:
            cause = f"The job ends: its time to leave is over ({agent.leaving.cause})"
            why = dumps.silent(Path(place := settings.dump_path(os.environ)))
            why = why and f" in {place}: {why}"
            return Verdict("give up", f"{cause}, and its state is not saved{why}")
        if agent.preparing:
            return Verdict("wait")
        if epoch is not None and any(
            r.process is None and r.over is None for r in epoch.ranks.values()
        ):
            # torch would not recognize a process that is started between two of its polls
            return Verdict("wait")
        if epoch is None:
            return Verdict("native")
        if not epoch.protected:
            failed = any(r.failed for r in epoch.ranks.values())
            return Verdict("wait" if failed and self.managed else "native")
        return Verdict("native" if agent.is_over(epoch) else "wait")

    @property
    def managed(self) -> bool:
        """Whether a manager has answered. From then on only the manager orders restarts of all
        ranks, until it has been gone for too long."""
        managers, watch = self.agent.managers, self.agent.manager_watch
        return managers is not None and managers.met and not watch.given_up

    @property
    def protecting(self) -> bool:
        """Whether this node's ranks are protected by a manager."""
        epoch = self.agent.epoch
        return epoch is not None and epoch.protected

    @property
    def has_manager(self) -> bool:
        """Whether a manager is in charge of this node, and can be reached."""
        managers = self.agent.managers
        return managers is not None and managers.content

    def dead(self) -> list[Rank]:
        """Ranks whose process has failed, for the launcher's report."""
        epoch = self.agent.epoch
        return [r for r in epoch.ranks.values() if r.failed] if epoch else []

    def traceback(self, local: int, pid: int) -> str:
        """The traceback of the exception that ended a rank's process, or ""."""
        epoch = self.agent.epoch
        if epoch is None:
            return ""
        return raised.read(epoch.directory, local, pid) or raised.read(
            epoch.directory, local, epoch.page.read(local).pid
        )


def make_epoch(
    number: int,
    key: bytes,
    job: str,
    environments: dict[int, dict[str, str]],
    common: dict[str, str],
) -> Epoch:
    """Make the shared memory of an epoch before its ranks start. `key`: seals their records. Adds
    its names and the `common` variables to `environments`, by local rank. Raises OSError."""
    directory, lock = shared_memory.make()
    held = shared_memory.hold(directory, (n for local in environments for n in store.names(local)))
    pipes: dict[int, int] = {}
    try:
        sealed.write_key(directory, key, job)
        page = Page.create(str(directory / "page"), len(environments))
        for local, environment in environments.items():
            environment.update(
                TASKD_PAGE=str(directory / "page"),
                TASKD_SHARED_DIR=str(directory),
                TASKD_SLOT=str(local),
                TASKD_LOCAL_RANK=str(local),
                TASKD_INCARNATION="0",
                RESTART_FAULT_PROCESS_TYPE="pod",  # read by MindSpeed-LLM, as TaskD sets it
                **_of_nccl(),
                **common,
            )
        for local in environments:
            pipes[local] = stacks.pipe(directory, local)
        os.mkfifo(directory / store.NOTES, 0o600)
    except OSError:
        shared_memory.remove(directory, lock, (*held, *pipes.values()))
        raise
    return Epoch(number, directory, page, lock, pipes, held=held)


# What torch does by itself after a collective that was cut, and must leave to taskd: its watchdog
# would end the process, or keep the next collective waiting for a minute while it writes a dump;
# its monitor would end a process that waits for a repair (torch's ProcessGroupNCCL.cpp). Read when
# a backend is made, the script's own too. "nccl2" takes that backend's place from torch 2.15 on.
NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_PROPAGATE_ERROR": "0",
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_DIST_USE_NCCL2": "0",
}


def _of_nccl() -> dict[str, str]:
    """For jobs that are to be protected over NCCL; others train as under torchrun."""
    if not settings.tries_nccl(os.environ):
        return {}
    return {name: value for name, value in NCCL.items() if name not in os.environ}


def preloading() -> dict[str, str]:
    """Variables that make a process start with libtaskd, in front of other allocators: it sees only
    what comes to it first."""
    ours = library_path()
    others = [
        entry
        for entry in re.split("[: ]+", os.environ.get("LD_PRELOAD", ""))  # as the dynamic linker
        if entry and os.path.realpath(entry) != os.path.realpath(ours)
    ]
    return {"LD_PRELOAD": ":".join((ours, *others))}
