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

from taskd import logs, settings
from taskd.adaptor.msrun import place
from taskd.adaptor.msrun.scheduler import Scheduler
from taskd.adaptor.msrun.workers import NotUsable, Workers
from taskd.agent.processes import Forked, describe
from taskd.agent.ranks import Rank
from taskd.agent.supervisor import Supervisor
from taskd.agent.watchdog import Limits
from taskd.core import set_up
from taskd.messages import from_agent, to_agent
from taskd.protocol import secret

# put before the workers' PYTHONPATH
IN_WORKER = Path(__file__).parent / "in_worker"
FAREWELL = 600.0  # seconds that other nodes' workers may take longer; torch's exit barrier is 300
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

log = logging.getLogger("taskd.agent")


class MsrunAgent:
    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        """`functions`: that msrun has registered, by operator. Raises NotUsable, BadSecret."""
        self._workers = Workers(functions)
        manager = getattr(functions["MONITOR"], "__self__", None)
        self._place = place.find(
            self._workers.ranks(), os.environ, str(getattr(manager, "master_addr", ""))
        )
        if self._place.nodes > 1 and getattr(manager, "node_rank", 0) == -1:
            raise NotUsable("a job of several nodes needs msrun's --node_rank on each of them")
        logs.setup(f"agent-{self._place.node}")
        for notice in settings.check(os.environ):
            log.info("%s", notice)
        job, port = settings.job_id(os.environ), settings.port(os.environ)
        self._supervisor = Supervisor(
            address=self._place.manager,
            keys=secret.for_job(job, os.environ, port, self._place.nodes),
            job=job,
            manager_wait=settings.manager_wait(os.environ),
            preload=settings.preload(os.environ),
            limits=Limits(least=settings.hang_limit(os.environ)),
        )
        self._news = self._supervisor.agent.news
        self._scheduler = Scheduler(functions["MONITOR"], self._news.set)
        self._set_up = set_up.SetUp(first_only=True)
        self._epoch = 0
        self._began = 0.0  # when the workers were last started
        self._signal: signal.Signals | None = None

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
            self._supervisor.stopping()
            self._workers.kill()
            self._scheduler.end(kill=not ok)
            self._supervisor.close(ok, why.partition("\n")[0])
            for number, handler in handlers.items():
                signal.signal(number, handler)
        if not ok:
            print(f"\ntaskd: {why}\n", file=sys.stderr, flush=True)
            raise SystemExit(status)

    # -- signals to msrun --------------------------------------------------------------------------

    def _listen(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._told) for number in SIGNALS}

    def _told(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or signal.Signals(number)
        self._news.set()

    # -- workers -----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start all workers as epoch `self._epoch`."""
        environments: dict[int, dict[str, str]] = {local: {} for local in self._place.ranks}
        self._supervisor.prepare(self._place.node, self._epoch, environments)
        paths = [str(IN_WORKER), *filter(None, [os.environ.get("PYTHONPATH")])]
        processes = {}
        self._began = time.monotonic()
        for local, rank in self._place.ranks.items():
            variables = {**environments[local], "PYTHONPATH": os.pathsep.join(paths)}
            processes[local] = rank, Forked(self._workers.start(local, variables))
        self._supervisor.lead(processes, lambda: (None, (self._place.host(), 0)), self._place.nodes)

    def _restart(self, order: to_agent.RestartAll) -> None:
        log.warning("all workers are restarted: %s", order.reason)
        self._supervisor.stopping()
        self._workers.kill()
        self._workers.keep_logs(self._epoch)
        if self._scheduler.dead:
            self._scheduler.start()
        self._epoch = order.attempt
        self._start()

    def _watch(self) -> tuple[str, int]:
        """Carry out verdicts until the job is over; returns why it failed ("" if it has not), and
        msrun's exit status then."""
        wait, alone = settings.manager_wait(os.environ), None
        while True:
            timeout = None if alone is None else max(alone - time.monotonic(), 0.0)
            self._news.wait(timeout)
            self._news.clear()
            if self._signal is not None:
                return f"msrun was stopped by {self._signal.name}", 128 + self._signal
            verdict, epoch = self._supervisor.verdict(), self._supervisor.agent.epoch
            assert epoch is not None
            failed = self._supervisor.dead()
            if verdict.what == "give up":
                return verdict.reason, _status(failed)
            if verdict.restart is not None:
                if why := self._in_vain(failed):
                    return why, _status(failed)
                alone = None
                self._restart(verdict.restart)
            elif all(r.over == "ended well" for r in epoch.ranks.values()):
                self._supervisor.farewell(FAREWELL)
                return self._after_farewell()
            elif self._scheduler.failed:
                cause = describe(self._scheduler.status, [])
                log.warning("the scheduler %s: it is replaced", cause)
                self._scheduler.start()
                agent, node = self._supervisor.agent, self._place.node
                died = from_agent.SchedulerDied(node, cause)
                agent.call(functools.partial(agent.tell, died))
            elif failed and alone is None:
                alone = time.monotonic() + wait
            elif alone is not None and time.monotonic() >= alone:
                return (
                    f"rank {failed[0].number} {failed[0].over}, and no manager has ordered anything"
                    f" within {wait:.0f} s: start manager.py where MS_SCHED_HOST equals POD_IP"
                ), _status(failed)

    def _after_farewell(self) -> tuple[str, int]:
        decided = self._supervisor.agent.decided
        return (decided.reason, 1) if decided is not None else ("", 0)

    def _in_vain(self, failed: list[Rank]) -> str:
        """Why another start cannot help; "" if it may."""
        failures = [
            set_up.Failure(rank.number, _code(rank), self._workers.traceback(rank.local))
            for rank in failed
        ]
        first = self._set_up.failed(failures, time.monotonic() - self._began)
        if first is None:
            return ""
        return (
            f"The job ends: rank {first.rank} failed {set_up.LIMIT} times in a row in the same way"
            f" ({set_up.how(first)}), each time within {set_up.LONG:.0f} s: a defect of the script"
            " or its environment that a restart does not fix. Fix it and start the job again."
        ) + (f"\n\nThe first time:\n{first.traceback.rstrip()}" if first.traceback else "")


def _code(rank: Rank) -> int:
    code = rank.process.poll()
    return 1 if code in (None, 0) else int(code)


def _status(failed: list[Rank]) -> int:
    """msrun's exit status: the first failed worker's; 128 and more for a signal."""
    if not failed:
        return 1
    code = _code(failed[0])
    return code if code > 0 else 128 - code
