"""taskd's agent inside msrun: it owns the job until that has ended.

The manager decides, as for torchrun. msrun's launchers have no rendezvous of their own, so that all
ranks are restarted by the manager's order alone. Deaths are seen by pidfd.
"""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from taskd import settings
from taskd.adaptor import launcher, set_up
from taskd.adaptor.msrun.scheduler import LEAVING, Scheduler
from taskd.adaptor.msrun.workers import NotUsable, Program, Workers
from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.ranks.processes import Forked, describe
from taskd.agent.ranks.replacements import IN_PLACE, Order
from taskd.messages import from_agent, to_agent
from taskd.protocol.addresses import Address

# put before the workers' PYTHONPATH
IN_WORKER = Path(__file__).parent / "in_worker"
FAREWELL = 600.0  # seconds that other nodes' workers may take longer; torch's exit barrier is 300
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("taskd.agent")


class MsrunAgent:
    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """`functions`: that msrun has registered, by operator. Raises NotUsable, BadSetting."""
        self._workers = Workers(functions)
        manager = getattr(functions["MONITOR"], "__self__", None)
        self._ranks = self._workers.ranks()  # by local rank
        self._node, self._nodes = _place(self._ranks)
        if self._nodes > 1 and getattr(manager, "node_rank", 0) == -1:
            raise NotUsable("a job of several nodes needs msrun's --node_rank on each of them")
        self._scheduler_host = os.environ.get("MS_SCHED_HOST") or str(
            getattr(manager, "master_addr", "")
        )
        # its host may be a pod that has no workers; manager.py is where it is
        self._here = self._node == 0 and bool(getattr(manager, "is_master", True))
        self._supervisor = launcher.supervise(self._manager, self._node, self._nodes)
        self._news = self._supervisor.agent.news
        self._scheduler = Scheduler(functions["MONITOR"], self._news.set)
        self._set_up = set_up.SetUp(
            first_only=True, when=f"within {set_up.LONG:.0f} s of its start"
        )
        self._epoch = 0
        self._kept: Any = None  # the scheduler that the workers before had too
        self._variables: dict[int, dict[str, str]] = {}  # of the workers, by local rank
        self._warm = False  # a zygote was started
        self._signal: signal.Signals | None = None

    def _manager(self) -> Address:
        return launcher.manager(self._scheduler_host, here=self._here)

    def run(self) -> None:
        """Train until the job has ended well on all nodes. Raises SystemExit if it has not."""
        ok, why, status = False, "", 1
        handlers = self._listen()
        try:
            self._start()
            why, status = self._watch()
            ok = not why
        except NotUsable as error:
            why = str(error)
        except BaseException as error:
            why = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._stop()
            self._scheduler.end(kill=not ok)
            self._supervisor.close(ok, why.partition("\n")[0], self._signal is not None)
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if not ok:
            print(f"\ntaskd: {why}\n{launcher.last_words(os.environ)}", file=sys.stderr, flush=True)
            raise SystemExit(status)

    # -- signals to msrun --------------------------------------------------------------------------

    def _listen(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._signaled) for number in SIGNALS}

    def _signaled(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number)
        self._news.set()

    # -- workers -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start all workers as epoch `self._epoch`."""
        environments: dict[int, dict[str, str]] = {local: {} for local in self._ranks}
        self._supervisor.prepare(self._node, self._epoch, environments)
        processes = {}
        self._set_up.starting()
        for local, rank in self._ranks.items():
            self._variables[local] = {
                **environments[local],
                "PYTHONPATH": _worker_path(),
            }
            started = self._workers.start(local, self._variables[local])
            processes[local] = rank, Forked(started)
        self._supervisor.lead(processes, self._no_store, self._nodes)

    def _no_store(self) -> tuple[None, Address]:
        return None, (launcher.own_host(self._nodes > 1, self._manager()), 0)

    def _replace(self) -> None:
        """Start the replacements that the manager has ordered."""
        agent = self._supervisor.agent
        epoch = agent.epoch
        while epoch is not None and not agent.wanted.empty():
            local, incarnation = agent.wanted.get()
            rank = epoch.ranks.get(local)
            if rank is None or rank.incarnation != incarnation:
                continue  # ordered before all ranks were restarted
            variables = {
                **self._variables[local],
                "TASKD_INCARNATION": str(incarnation),
                **IN_PLACE,
            }
            program, zygote = self._workers.programs.get(local), agent.replacements.zygote
            if program is not None and zygote is not None and zygote.ready:
                order = self._order(program, rank, incarnation)
                agent.call(functools.partial(agent.replacements.start, order))
                continue
            self._workers.keep_log(local, self._epoch, incarnation - 1)
            process = Forked(self._workers.start(local, variables))
            agent.call(
                functools.partial(
                    agent.processes.started_by_launcher, epoch, local, incarnation, process
                )
            )

    def _order(self, program: Program, rank: Rank, incarnation: int) -> Order:
        """The order to fork the replacement. It appends to its predecessor's log, which msrun's
        --join follows."""
        agent = self._supervisor.agent
        local = rank.local

        def by_msrun() -> None:
            agent.wanted.put((local, incarnation))
            self._news.set()

        paths = {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
        variables = {k: v for k, v in program.environment.items() if k != "PYTHONPATH"}
        return Order(
            rank.number,
            incarnation,
            sys.executable,
            program.arguments,
            {**variables, **paths, "TASKD_INCARNATION": str(incarnation), **IN_PLACE},
            program.log,
            program.log,
            by_msrun,
        )

    def _warm_up(self, epoch: Epoch) -> None:
        """Start the zygote once ranks can be replaced one by one: without handlers none is."""
        for rank in epoch.ranks.values():
            if rank.handlers and rank.over is None:
                self._workers.learn(rank.local)
        if not self._warm and any(self._workers.programs.values()):
            self._warm = True
            self._supervisor.warm({"PYTHONPATH": _worker_path()}, "taskd.adaptor.msrun.forked")

    def _stop(self) -> None:
        """Kill the workers, whoever started them."""
        epoch = self._supervisor.agent.epoch
        self._supervisor.stopping()
        ranks = epoch.ranks.values() if epoch is not None else ()
        self._workers.kill({r.local: r.process.pid for r in ranks if r.process is not None})

    def _restart(self, order: to_agent.RestartAll) -> None:
        log.warning("all workers are restarted: %s", order.reason)
        self._stop()
        self._workers.keep_logs(self._epoch)
        if self._scheduler.dead:
            self._scheduler.start()
            self._kept = None
        else:
            self._kept = self._scheduler.process
        self._epoch = order.attempt
        self._start()

    def _watch(self) -> tuple[str, int]:
        """Carry out verdicts until the job is over; returns why it failed ("" if it did not), and
        msrun's exit status."""
        wait, alone = settings.manager_wait(os.environ), None
        while True:
            timeout = None if alone is None else max(alone - time.monotonic(), 0.0)
            self._news.wait(timeout)
            self._news.clear()
            if self._signal is not None and not self._supervisor.asked_to_leave(self._signal):
                return f"msrun was stopped by {self._signal.name}", 128 + self._signal
            verdict, epoch = self._supervisor.verdict(), self._supervisor.agent.epoch
            assert epoch is not None
            self._warm_up(epoch)
            self._replace()
            failed = self._supervisor.dead()
            if verdict.what == "give up":
                known = verdict.ending != "failed" or verdict.moved
                return verdict.reason, launcher.status(
                    verdict.ending, verdict.moved
                ) if known else _status(failed)
            if verdict.restart is not None:
                lost = verdict.restart.fault == "node"
                if not lost and (why := self._in_vain(failed)):
                    return why, _status(failed)
                alone = None
                self._restart(verdict.restart)
            elif all(r.over == "ended well" for r in epoch.ranks.values()):
                self._supervisor.farewell(FAREWELL)
                return self._after_farewell()
            elif self._scheduler.failed or self._has_left(epoch):
                cause = describe(self._scheduler.status, [])
                log.warning("the scheduler %s: it is replaced", cause)
                self._scheduler.start()
                agent, node = self._supervisor.agent, self._node
                died = from_agent.SchedulerDied(node, cause)
                agent.call(functools.partial(agent.report, died))
            elif not failed:
                alone = None
            elif alone is None or self._supervisor.has_manager:
                # it orders a restart, perhaps once another pod has come, or ends the job
                alone = time.monotonic() + wait
            elif time.monotonic() >= alone:
                return (
                    f"rank {failed[0].number} {failed[0].over}, and no manager has ordered anything"
                    f" within {wait:.0f} s: start manager.py where MS_SCHED_HOST equals POD_IP"
                ), _status(failed)

    def _has_left(self, epoch: Epoch) -> bool:
        """Whether the scheduler has ended well, but because of the previous workers: they had
        finished with it before the restart, and it ends a second after that."""
        earlier = self._kept is not None and self._kept is self._scheduler.process
        soon = time.monotonic() - self._set_up.began < LEAVING
        alive = all(r.over is None for r in epoch.ranks.values())
        return earlier and self._scheduler.dead and soon and alive

    def _after_farewell(self) -> tuple[str, int]:
        decided = self._supervisor.agent.decided
        return (decided.reason, 1) if decided is not None else ("", 0)

    def _in_vain(self, failed: list[Rank]) -> str:
        """Why another start cannot help; "" if it may."""
        return self._set_up.in_vain(
            set_up.Failure(rank.number, _code(rank), self._workers.traceback(rank.local))
            for rank in failed
        )


def _place(ranks: dict[int, int]) -> tuple[int, int]:
    """This node and how many the job has, each with as many ranks. Raises NotUsable."""
    each = len(ranks)
    given = os.environ.get("MS_WORKER_NUM") or os.environ.get("RANK_SIZE") or str(each)
    world = int(given) if given.isascii() and given.isdigit() else 0
    if world < each or world % each:
        raise NotUsable(
            f"MS_WORKER_NUM={given!r}: it must be a multiple of the {each} workers of this node"
        )
    return min(ranks.values()) // each, world // each


def _worker_path() -> str:
    return os.pathsep.join([str(IN_WORKER), *filter(None, [os.environ.get("PYTHONPATH")])])


def _code(rank: Rank) -> int:
    code = rank.process.poll()
    return 1 if code in (None, 0) else int(code)


def _status(failed: list[Rank]) -> int:
    """msrun's exit status: the first failed worker's; 128 and more for a signal."""
    if not failed:
        return 1
    code = _code(failed[0])
    return code if code > 0 else 128 - code
