"""Monitors ranks that train: detects one that makes no progress, answers progress probes, reports
lost memory pages, and relays operators' requests. Used by the agent's thread; threads that wait for
something hand their result back to it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from taskd import settings, stacks
from taskd.agent.ranks import threads
from taskd.agent.ranks.model import Epoch, Rank
from taskd.agent.ranks.watchdog import Watchdog
from taskd.cython_api import slot
from taskd.cython_api.page import View
from taskd.messages import codec, from_agent, from_rank, to_rank

log = logging.getLogger("taskd.agent")

ANSWER = 0.25  # seconds; a thread answers in ~1 ms, up to ~10 ms when the interpreter is busy
BELL = 1000  # ms between two checks that the epoch is still the present one
# faults that are signals, and what they do
SIGNALS = {
    "kill": (signal.SIGKILL, "was killed by SIGKILL"),
    "stop": (signal.SIGSTOP, "was stopped by SIGSTOP, and hangs until it is replaced"),
}
PROCESSES = 100  # most examined per rank: ~20 us for each thread


class Signals(Protocol):
    """What is done about signals that ask the job to leave, see agent/leaving.py."""

    def by_ranks(self, epoch: Epoch) -> None: ...

    def margin(self, epoch: Epoch) -> int: ...


@dataclass
class _Call:
    """A progress probe under way."""

    number: int
    due: float
    missing: set[int]  # local ranks


@dataclass
class RankMonitor:
    """`report` sends to the manager; `later` runs an action in the agent's thread."""

    report: Callable[[Any], None]
    later: Callable[[Callable[[], None]], None]
    leaving: Signals
    watchdog: Watchdog = field(default_factory=Watchdog)
    _call: _Call | None = None
    _epoch: Epoch | None = None
    # local rank -> its process, and since when it is stopped
    _stopped: dict[int, tuple[int, float]] = field(default_factory=dict)

    # -- memory pages ------------------------------------------------------------------------------

    def begin(self, epoch: Epoch) -> None:
        """Start a new epoch: listen for its bell, which ranks ring from a signal handler."""
        self._epoch, self._call, self.watchdog.holding = epoch, None, False
        self._stopped.clear()
        threads.run("taskd-bell", lambda: self._listen(epoch), here=False)

    def _listen(self, epoch: Epoch) -> None:
        seen = 0
        with contextlib.suppress(ValueError):  # the page was closed
            while not epoch.dropped:
                if epoch.page.wait_bell(seen, BELL):
                    seen = epoch.page.bell()
                    self.later(lambda: self._rung(epoch))

    def _rung(self, epoch: Epoch) -> None:
        if not epoch.dropped:
            self.leaving.by_ranks(epoch)
        self._damaged(epoch)

    def _damaged(self, epoch: Epoch) -> None:
        for rank in epoch.ranks.values():
            if epoch.dropped or rank.over is not None:
                continue
            for damage in epoch.page.damages(rank.local):
                if damage["number"] > rank.damages:
                    rank.damages = damage["number"]
                    step = epoch.page.read(rank.local).step
                    text = f"the memory page at {damage['addr']:#x} was lost"
                    log.warning(
                        "rank %d: %s (%s, %d bytes at %#x)",
                        rank.number,
                        text,
                        damage["kind"],
                        damage["size"],
                        damage["base"],
                    )
                    self.report(
                        from_rank.RankFaulted(
                            rank.number,
                            rank.incarnation,
                            step,
                            from_rank.MEMORY,
                            text,
                            damage["addr"],
                        )
                    )

    # -- progress ----------------------------------------------------------------------------------

    def poll(self, epoch: Epoch, now: float) -> float | None:
        """Report ranks that make no progress, and end a progress probe whose time is up; returns
        when to look again."""
        call = self._call
        if call is not None and now >= call.due:
            self._call = None
            for local in call.missing:
                self._present(epoch, epoch.ranks[local], call.number, None)
        due = self._call.due if self._call is not None else None
        if not epoch.protected:
            return due
        ranks = {r.local: r for r in epoch.ranks.values() if not r.gone and r.joined}
        views = {local: epoch.page.read(local) for local in ranks}
        found, again = self.watchdog.complaints(views, now)
        for local in found:
            rank, view = ranks[local], views[local]
            self.report(
                from_agent.RankStalled(
                    rank.number, rank.incarnation, view.step, self.watchdog.silence(view, now)
                )
            )
        return min((t for t in (due, again) if t is not None), default=None)

    def progress_probe(self, epoch: Epoch, order: to_rank.ProbeProgress) -> None:
        living = [r for r in epoch.ranks.values() if r.over != "ended well"]
        if order.places:
            for rank in living:
                if rank.number in order.places and not rank.gone:
                    self._locate(epoch, rank, order.call)
                else:
                    self._present(epoch, rank, order.call, None)
            return
        self._call = _Call(order.call, time.monotonic() + ANSWER, {r.local for r in living})
        for rank in living:
            if rank.gone or not self.ask(rank, order):
                self._call.missing.discard(rank.local)
                self._present(epoch, rank, order.call, None)

    def _locate(self, epoch: Epoch, rank: Rank, call: int) -> None:
        """Report where the rank's main thread is."""

        def told(text: str) -> None:
            if self._epoch is epoch and not rank.gone:
                self._present(epoch, rank, call, None, stacks.place(text))

        self.with_stacks(rank, told)

    def here(self, epoch: Epoch, rank: Rank, answer: from_rank.Progress) -> None:
        call = self._call
        if call is not None and answer.call == call.number and rank.local in call.missing:
            call.missing.discard(rank.local)
            self._present(epoch, rank, answer.call, answer)

    def _present(
        self,
        epoch: Epoch,
        rank: Rank,
        call: int,
        answer: from_rank.Progress | None,
        place: str = "",
    ) -> None:
        view, now = epoch.page.read(rank.local), time.monotonic()
        state = stacks.state(rank.pid)
        stopped = state in stacks.STOPPED
        where = place or slot.PHASES[view.phase] + (f", {state}" if state else "")
        cpu, queued = spent(rank.pid)
        self.report(
            from_agent.ProgressReport(
                rank=rank.number,
                incarnation=rank.incarnation,
                call=call,
                answered=answer is not None,
                step=view.step,
                collectives=answer.collectives
                if answer is not None and answer.step == view.step
                else 0,
                waiting=self.watchdog.waiting(view),
                overdue=self.watchdog.overdue(view, now, stopped)
                or self.watchdog.too_long(self._stopped_for(rank, now)),
                seconds=self.watchdog.silence(view, now),
                cpu=cpu,
                where=where,
                stopped=stopped,
                queued=queued,
                limit=self.watchdog.limit(view) or 0.0,
                patient=view.until_ns / 1e9 > now,
                left=view.phase == slot.LEFT,
            )
        )

    def beat(self, epoch: Epoch, now: float) -> None:
        """Report ranks that are stopped by a signal, in any phase; called every few seconds.
        No other check catches this: a waiting rank makes no progress by design."""
        for rank in epoch.ranks.values():
            if (
                rank.over is not None
                or rank.pid == 0
                or stacks.state(rank.pid) not in stacks.STOPPED
            ):
                self._stopped.pop(rank.local, None)
                continue
            if self._stopped.get(rank.local, (0, 0.0))[0] != rank.pid:
                self._stopped[rank.local] = rank.pid, now
            seconds = self._stopped_for(rank, now)
            if epoch.protected and self.watchdog.too_long(seconds):
                step = epoch.page.read(rank.local).step
                self.report(
                    from_agent.RankStalled(
                        rank.number, rank.incarnation, step, seconds, stopped=True
                    )
                )

    @property
    def stopped(self) -> Collection[int]:
        """The local ranks that were stopped by a signal when they were looked at last."""
        return self._stopped.keys()

    def _stopped_for(self, rank: Rank, now: float) -> float:
        """Seconds since the rank was first found stopped."""
        pid, since = self._stopped.get(rank.local, (0, now))
        return now - since if pid == rank.pid else 0.0

    def with_stacks(self, rank: Rank, then: Callable[[str], None]) -> None:
        """Log where the rank's threads are, then run `then` in the agent's thread, with their
        stacks; "": they are not known."""
        pid, number, fd = rank.pid, rank.number, rank.stacks

        def take() -> None:
            state = stacks.state(pid)
            text = "" if state else stacks.take(pid, fd)
            why = state or ("no answer" if stacks.offered(pid) else "it has not offered them yet")
            where = stacks.place(text) or "its stacks are in this agent's log"
            log.warning("rank %d (pid %d): %s", number, pid, where if text else f"no stacks: {why}")
            if text:
                log.info("the stacks of rank %d (pid %d):\n%s", number, pid, text)
            self.later(lambda: then(text))

        threads.run("taskd-stacks", take)

    # -- operators' requests -----------------------------------------------------------------------

    def ask_steps(self, epoch: Epoch, node: int) -> None:
        first = max(_first_not_begun(epoch.page.read(r.local)) for r in epoch.ranks.values())
        self.report(from_agent.StepsBegun(node, first + self.leaving.margin(epoch)))

    def pause(self, epoch: Epoch, step: int | None) -> None:
        """Set the step before which ranks pause, which they check when they begin one; None lifts
        the pause. Reports the ranks that had begun that step already."""
        epoch.page.pause(step)
        self.watchdog.holding = step is not None
        # the silence of a paused rank counts only from now on
        self.watchdog.excuse(time.monotonic())
        for rank in epoch.ranks.values() if step is not None else ():
            view = epoch.page.read(rank.local)
            if view.phase in (slot.COMPUTING, slot.UPDATING) and view.step >= (step or 0):
                self.report(from_rank.RankPassed(rank.number, rank.incarnation, view.step))

    def inject(self, epoch: Epoch, order: to_rank.Inject, node: int) -> None:
        rank = epoch.find(order.rank)
        if rank is None or rank.over is not None:
            self._answer(order, False, f"rank {order.rank} has no process now")
            return
        where = f"pid {rank.pid} on node {node}, host {os.uname().nodename}"
        if order.what in SIGNALS:
            self._signal(rank, order, where)
        elif self.ask(rank, order):
            rank.injections[order.request] = where
        else:
            self._answer(order, False, f"rank {order.rank} has no process that listens now")

    def _signal(self, rank: Rank, order: to_rank.Inject, where: str) -> None:
        """By the agent, as a rank that is busy or stopped could not do it: to the very process."""
        number, done = SIGNALS[order.what]
        # the manager has checked this too
        if not settings.fault_injection(os.environ):
            self._answer(
                order, False, "this node accepts no injected faults: TASKD_FAULT_INJECTION"
            )
        elif rank.pidfd is None:
            self._answer(order, False, f"rank {order.rank} has no process now")
        else:
            log.warning("injected fault: %s of rank %d, %s", number.name, rank.number, where)
            try:
                signal.pidfd_send_signal(rank.pidfd, number)
                if number == signal.SIGKILL:
                    rank.killed = "taskd inject kill"
            except OSError as error:
                self._answer(order, False, f"{where} is gone: {error.strerror}")
                return
            self._answer(order, True, f"{where}, {done}")

    def _answer(self, order: to_rank.Inject, ok: bool, text: str) -> None:
        self.report(from_rank.Injected(order.request, order.rank, ok, text))

    def died(self, rank: Rank) -> None:
        """Answer the requests for faults that the rank has not answered: its process has ended."""
        for request, where in rank.injections.items():
            text = f"{where}, has ended: {rank.over}"
            self.report(from_rank.Injected(request, rank.number, True, text))
        rank.injections.clear()

    def injected(self, rank: Rank, answer: from_rank.Injected) -> None:
        if rank.injections.pop(answer.request, None) is not None:
            self.report(answer)

    @staticmethod
    def ask(rank: Rank, message: Any) -> bool:
        """Send to the rank's control thread; False if no thread reads it."""
        if rank.control is None:
            return False
        try:
            rank.control.send(codec.encode(message))
        except OSError:  # dying, or stopped for so long that its socket is full
            return False
        return True


def _first_not_begun(view: View) -> int:
    # a rank that fetches its batch enters the step without another check
    return int(view.step) + (view.phase in (slot.COMPUTING, slot.UPDATING, slot.FETCHING))


def spent(pid: int) -> tuple[float, float]:
    """Seconds on a processor, and runnable without one, of all threads of process `pid` and its
    descendants: from the kernel, so the rank need not answer. 0 where unknown."""
    ran = waited = 0
    processes, found = [pid], {pid}
    while processes:
        for task in _tasks(processes.pop()):
            with contextlib.suppress(OSError, ValueError, IndexError):
                times = (task / "schedstat").read_text().split()
                ran, waited = ran + int(times[0]), waited + int(times[1])
            with contextlib.suppress(OSError, ValueError):
                new = {int(p) for p in (task / "children").read_text().split()} - found
                if len(found) < PROCESSES:
                    found |= new
                    processes += new
    return ran / 1e9, waited / 1e9


def _tasks(pid: int) -> list[Path]:
    if not pid:
        return []
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
