"""Tasks that ranks carry out while all of them are paused before a step: a switch of network cards,
and stress tests of devices. An operator or the advisor requests them; one runs at a time.

All ranks pause, those concerned carry out the task and report its results, and all continue. A
fault meanwhile ends the task, and is repaired like any other. A rank that does not report in time
is replaced: its process is stuck in the device.

After a stress test, a faulty device costs its node; one that took too long or whose voltage was not
restored costs its rank's process. The advisor gets the results of its own tests, and decides
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.demand import Demand
from taskd.core.incident.faults import Faults
from taskd.core.incident.machine import Recovery
from taskd.core.job.pause import TASK, Pause
from taskd.core.job.state import JobState, Part
from taskd.core.lifecycle.finishing import Finishing
from taskd.messages import from_operator, from_rank, to_rank
from taskd.messages.from_rank import FAULTY, NOT_DONE, TOO_LONG, VOLTAGE, WELL
from taskd.messages.to_rank import TESTS
from taskd.messages.values import Results

CODES = {
    NOT_DONE: "it was not carried out",
    FAULTY: "the device is faulty",
    TOO_LONG: "it took too long",
    VOLTAGE: "the voltage was not put back",
}


@dataclass
class _Task:
    order: to_rank.SwitchNics | to_rank.StressTest
    request: str  # of an operator; "": of the advisor
    deadline: float
    began: bool = False
    results: dict[int, Results] = field(default_factory=dict)
    silent: bool = False  # nobody waits for the results
    late: frozenset[int] = frozenset()  # ranks that have not reported in time


class Tasks(Part):
    def __init__(
        self,
        job: JobState,
        recovery: Recovery,
        faults: Faults,
        pause: Pause,
        finishing: Finishing,
        report: Callable[[bool, str, tuple[tuple[int, Results], ...]], None],
    ) -> None:
        """`report`: notifies the advisor that its task has ended, see Advisor.task_done."""
        self._job, self._recovery, self._faults = job, recovery, faults
        self._tell = report
        self._pause, self._finishing = pause, finishing
        self._task: _Task | None = None
        self._ordered = 0

    # -- what is asked for -------------------------------------------------------------------------

    def switch_nics(self, event: from_operator.NicSwitchRequested, now: float) -> None:
        self._nics(event.request, event.ranks, event.backup, now)

    def test(self, event: from_operator.StressTestRequested, now: float) -> None:
        ranks = event.ranks or tuple(self._job.ranks)
        self._tests(event.request, tuple((rank, event.ops) for rank in ranks), now)

    def of_advisor(self, event: e.AdvisorTask, now: float) -> None:
        if event.tests:
            self._tests("", event.tests, now)
        else:
            ranks = tuple(rank for rank, _ in event.ranks)
            self._nics("", ranks, tuple(backup for _, backup in event.ranks), now)

    def _nics(
        self, request: str, ranks: tuple[int, ...], backup: tuple[bool, ...], now: float
    ) -> None:
        order = to_rank.SwitchNics(self._number(), ranks, backup)
        wrong = "" if len(backup) == len(ranks) else "each rank needs a network card"
        self._begin(_Task(order, request, now + self._job.settings.pause_all), wrong, now)

    def _tests(
        self, request: str, tests: tuple[tuple[int, tuple[int, ...]], ...], now: float
    ) -> None:
        order = to_rank.StressTest(self._number(), tests)
        known = range(len(TESTS))
        good = all(ops and len(set(ops)) == len(ops) and set(ops) <= set(known) for _, ops in tests)
        wrong = "" if good else f"tests are numbered 0 to {known[-1]}, each at most once"
        self._begin(_Task(order, request, now + self._job.settings.pause_all), wrong, now)

    def _number(self) -> int:
        self._ordered += 1
        return self._job.of_this_term(self._ordered)

    def _begin(self, task: _Task, wrong: str, now: float) -> None:
        job, ranks = self._job, _ranks(task.order)
        beyond = [r for r in ranks if r not in job.ranks]
        reasons = (
            (bool(wrong), wrong),
            (not ranks or len(set(ranks)) < len(ranks), "name at least one rank, each only once"),
            (bool(beyond), f"this job has no ranks [{abbreviate(beyond)}]"),
            (not job.protected, job.unready),
            (self._task is not None, "another task is under way"),
        )
        refusal = next((why for holds, why in reasons if holds), "")
        job.note(f"{_words(task.order)}: {refusal or 'all ranks pause for it'}")
        if refusal:
            self._report(task, False, refusal)
            return
        self._task = task
        self._pause.request("", TASK)
        self._finishing.check(now)

    # -- while it is done --------------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        return self._task.deadline if self._task is not None else None

    def follow_up(self, now: float) -> None:
        """Go on with the task; called after every event."""
        task, incident = self._task, self._recovery.incident
        if task is None:
            return
        if self._job.over:
            self._task, self._pause.busy = None, False
        elif task.began and incident is not None:
            self._end(False, f"interrupted by a fault: {incident.faults[-1]}", now)
        elif not task.began and incident is None and self._pause.all_paused:
            self._order(task, now)

    def _order(self, task: _Task, now: float) -> None:
        if absent := [r for r in self._doing(task) if r not in self._pause.paused]:
            self._end(False, f"ranks [{abbreviate(absent)}] have finished their loops", now)
            return
        nics, settings = isinstance(task.order, to_rank.SwitchNics), self._job.settings
        self._pause.busy = True
        task.began, task.deadline = True, now + (settings.nics if nics else settings.stress)
        self._job.say(task.order)

    def _doing(self, task: _Task) -> list[int]:
        """The ranks that have to report."""
        nics = isinstance(task.order, to_rank.SwitchNics)  # all ranks change their connections
        return list(self._job.ranks) if nics else list(_ranks(task.order))

    def done(self, event: from_rank.TaskDone, now: float) -> None:
        task = self._task
        if task is None or not task.began or event.task != task.order.task:
            return
        task.results[event.rank] = event.results
        if all(rank in task.results for rank in self._doing(task)):
            bad = _bad(task.results)
            many = len(task.results)
            who = "1 rank" if many == 1 else f"all {many} ranks"
            self._end(not bad, bad or f"done: {who} succeeded", now)

    def tick(self, now: float) -> None:
        task = self._task
        if task is None or now < task.deadline:
            return
        if not task.began:
            self._end(False, "not all ranks had paused in time", now)
            return
        silent = [r for r in self._doing(task) if r not in task.results]
        task.late = frozenset(silent)
        text = f"ranks [{abbreviate(silent)}] have not finished their task in time"
        self._end(False, text, now)
        why = "its device has not finished a task in time"
        self._recovery.fault(text, now, evicted=dict.fromkeys(silent, why))

    def begin_anew(self, now: float) -> None:
        """The advisor starts over: its task ends, without an answer."""
        task = self._task
        if task is not None and not task.request:
            task.silent = True
            if not task.began:
                self._end(False, "its requester is gone, or has started over", now)

    def drop(self, why: str) -> None:
        """The paused processes are gone."""
        task, self._task = self._task, None
        if task is not None:
            self._report(task, False, why)

    def _end(self, well: bool, text: str, now: float) -> None:
        task, self._task, self._pause.busy = self._task, None, False
        assert task is not None
        self._job.note(f"{_words(task.order)}: {text}")
        self._report(task, well, text)
        self._pause.release("", TASK)
        self._finishing.check(now)
        # the advisor decides about the tests that it requested
        if task.request and isinstance(task.order, to_rank.StressTest):
            for rank, results in sorted(task.results.items()):
                self._act(rank, results, now)

    def _act(self, rank: int, results: Results, now: float) -> None:
        codes, text = {code for _, code, _ in results}, _bad({rank: results})
        state = self._job.ranks[rank]  # what is known of its device stays
        level = partial(e.DeviceLevel, "", rank, text, resetting=state.resetting)
        if FAULTY in codes:
            faulty = level("faulty", Demand.REPLACE_NODE, False, unusable=f"faulty: {text}")
            self._faults.levelled(faulty, now)
        elif codes & {TOO_LONG, VOLTAGE} and state.alive:
            doubt = level("in doubt", Demand.REPLACE_RANK, unusable=state.unusable)
            self._faults.levelled(doubt, now)

    def _report(self, task: _Task, well: bool, text: str) -> None:
        if task.silent:
            return
        if task.request:
            self._job.answer(task.request, well, text)
        elif isinstance(task.order, to_rank.SwitchNics):
            self._tell(well, text, ())
        else:
            results = tuple(
                (rank, task.results.get(rank) or _missing(rank in task.late, ops, text))
                for rank, ops in task.order.tests
            )
            self._tell(well, text, results)


def _missing(late: bool, ops: tuple[int, ...], text: str) -> Results:
    """Results of a rank that has reported none."""
    return tuple((op, TOO_LONG if late else NOT_DONE, text) for op in ops)


def _ranks(order: to_rank.SwitchNics | to_rank.StressTest) -> tuple[int, ...]:
    if isinstance(order, to_rank.SwitchNics):
        return order.ranks
    return tuple(rank for rank, _ in order.tests)


def _words(order: to_rank.SwitchNics | to_rank.StressTest) -> str:
    what = "switch of network cards" if isinstance(order, to_rank.SwitchNics) else "stress test"
    return f"{what} of ranks [{abbreviate(_ranks(order))}]"


def _bad(results: dict[int, Results]) -> str:
    """The failed results, in words."""
    return abbreviate(
        (
            f"rank {rank}: {CODES.get(code, f'code {code}')}{f' ({text})' if text else ''}"
            for rank, found in sorted(results.items())
            for _, code, text in found
            if code != WELL
        ),
        "; ",
    )
