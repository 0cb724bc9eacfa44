"""Runs progress probes on ranks that make no progress, from the first report to the verdict of
`progress_probe.py`.

During a repair an order may take a rank long: copies of a large state, the script of a replacement,
user code that is within its limit when it is interrupted. So during repairs the probe runs at
growing intervals and finds two kinds of hung ranks: those stopped by a signal, and those that use
no CPU while all others wait for them. A replacement hangs like that when its script communicates
with ranks that do not run that code again; an interrupted rank, when its collective did not end
with its connections.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.hang import progress_probe, standstill
from taskd.core.hang.standstill import Standstill
from taskd.core.incident.faults import TOGETHER, Faults
from taskd.core.incident.machine import Recovery
from taskd.core.incident.phases import Phase
from taskd.core.job.state import JobState, Part
from taskd.core.pending import PendingSet
from taskd.messages import from_agent, to_rank
from taskd.messages.values import RankSet

REPAIRING = (Phase.INTERRUPT, Phase.REPLACE, Phase.REBUILD, Phase.RESTORE, Phase.DUMP)
LOOKED_AT = (*REPAIRING, Phase.RESUME)
# phases in which a rank that idles is hung, and why
_REPLACEMENT = (
    "its replacement has waited for {seconds:.0f} s without using a processor ({where}), while all"
    " others wait for it: perhaps in a collective, or for a message, of ranks that do not run this"
    " code again"
)
WAITED_FOR = {
    Phase.INTERRUPT: (
        "it is in a collective that the interruption did not end, and has used no processor for"
        " {seconds:.0f} s ({where})"
    ),
    Phase.REPLACE: _REPLACEMENT,
    Phase.RESUME: _REPLACEMENT,
}
# of one CPU: what a waiting process uses for threads that poll now and then
STILL = 0.01
ALONE = 10.0  # seconds that a replacement may idle before the log says where


class HangDetector(Part):
    """Runs at most one progress probe at a time. Agents repeat RankStalled while a rank makes no
    progress, so no state is kept between probes for that."""

    def __init__(self, job: JobState, recovery: Recovery, faults: Faults) -> None:
        self._job, self._recovery, self._faults = job, recovery, faults
        self._due: float | None = None
        self._called = 0.0  # time of the last call
        self._call = 0
        self._answers: dict[int, from_agent.ProgressReport] = {}
        self._first: dict[int, from_agent.ProgressReport] | None = (
            None  # answers to the first of the two calls
        )
        self._pausing = False  # between the two calls
        # the answers of the previous judgment, and its time
        self._last: tuple[dict[int, from_agent.ProgressReport], float] = ({}, 0.0)
        # ranks that all others waited for when it was last judged, and when that was
        self.behind: tuple[set[int], float] = (set(), 0.0)
        self._said = ""
        self._asked = 0.0  # when the first of the two calls was answered
        # rank -> its answer when it last used the CPU or moved, and when
        self._still: dict[int, tuple[from_agent.ProgressReport, float]] = {}
        self._pending = PendingSet()
        self._standstill = Standstill(job.settings.standstill)
        self._placing = False  # where the ranks are is asked for
        self._judged: dict[int, from_agent.ProgressReport] = {}  # by which answers
        self._alone: dict[int, float] = {}  # or of these replacements, which wait for so long
        # of these, the answer when each last used a processor, and when
        self._quiet: dict[int, tuple[from_agent.ProgressReport, float]] = {}
        self._told: set[tuple[int, int]] = set()  # of an incident and a rank

    def stop(self) -> None:
        """Drop the probe under way, which is obsolete."""
        self._due, self._first, self._pausing, self._last, self._said = (
            None,
            None,
            False,
            ({}, 0.0),
            "",
        )
        self._still, self.behind = {}, (set(), 0.0)
        self._placing = False
        self._alone = {}
        self._standstill.forget()

    def drop(self, why: str) -> None:
        self.stop()

    @property
    def deadline(self) -> float | None:
        """When the next tick is due."""
        incident, look = self._recovery.incident, self._job.settings.look
        if (
            self._due is not None
            or incident is None
            or incident.phase not in LOOKED_AT
            or look is None
        ):
            return self._due
        entered = incident.timeline.entered[-1][1]
        gone = max(self._called - entered, 0.0)
        return entered + max(look, min(2 * gone, gone + self._job.settings.looks))

    def stalled(self, event: from_agent.RankStalled, now: float) -> None:
        if (
            self._job.protected
            and self._due is None
            and (event.stopped or self._recovery.phase in (None, Phase.RESUME))
        ):
            self._first = None
            self._ask(now)

    def present(self, event: from_agent.ProgressReport, now: float) -> None:
        if self._due is None or self._pausing or event.call != self._call:
            return
        self._answers[event.rank] = event
        if self._pending.any(self._job.ranks, self._to_answer):
            return
        if self._placing:
            self._placed(now)
        elif self._first is None:
            self._first, self._pausing, self._asked = dict(self._answers), True, now
            self._due = now + self._job.settings.between_calls
        else:
            self._judge(now)

    def tick(self, now: float) -> None:
        if (due := self.deadline) is None or now < due:
            return
        if self._due is None:
            self._first = None
            self._ask(now)
        elif self._pausing:
            self._ask(now)
        elif self._placing:
            self._placed(now)
        else:
            self._say(
                "progress probe: no reports about ranks"
                f" [{abbreviate(self._missing())}]; waiting for their agents"
            )
            self._due = None

    def _missing(self) -> list[int]:
        return [r for r in self._job.ranks if self._to_answer(r)]

    def _to_answer(self, number: int) -> bool:
        rank = self._job.ranks.get(number)
        return rank is not None and number not in self._answers and not rank.ended

    def _ask(self, now: float, places: Iterable[int] = ()) -> None:
        self._call += 1
        self._called = now
        of = RankSet.of(places)
        self._answers, self._pausing, self._placing = {}, False, bool(of)
        self._due = now + self._job.settings.progress_probe
        self._job.say(to_rank.ProbeProgress(self._call, of))

    def _judge(self, now: float) -> None:
        assert self._first is not None
        self._due, phase = None, self._recovery.phase
        if phase is None:
            self.behind = progress_probe.behind(self._answers), now
        self._look_who_is_still(now)
        verdict: progress_probe.Verdict | None = None
        if phase not in REPAIRING:
            before, when = self._last
            self._last = (dict(self._answers), now)
            verdict = progress_probe.judge(
                self._first,
                self._answers,
                before,
                now - when,
                now - self._asked,
                self._job.settings.idle,
                {r: s.finished for r, s in self._job.ranks.items() if s.finished is not None},
            )
        if (
            isinstance(verdict, progress_probe.Hung)
            and (gone := self._quitter(verdict)) is not None
        ):
            waiting = abbreviate(verdict.ranks)
            steps = {r: self._answers[r].step for r in verdict.ranks}
            if not self._faults.apart(steps, min(verdict.ranks.items())[1]):
                why = f"ranks [{waiting}] wait for rank {gone}, which has exited"
                self._recovery.fault(why, now)
        elif isinstance(verdict, progress_probe.Hung):
            self._hung(verdict.ranks, now)
        elif found := self._stopped(phase) or self._waits_alone(phase, now):
            self._hung(found, now)
        elif isinstance(verdict, progress_probe.Apart):
            self._job.give_up(f"{verdict.why}. {TOGETHER}")
        elif isinstance(verdict, progress_probe.Stuck):
            self._faults.stuck(verdict.why, now)
        elif verdict is not None:
            self._say(f"progress probe: {verdict.why}")
            job = self._job
            least = job.settings.form if phase is Phase.RESUME else None
            # what a script does behind a pass, or its last one, may take long
            inside = all(a.step > job.released for a in self._answers.values())
            if self._standstill.found(self._answers, now, least) and inside:
                self._judged = dict(self._answers)
                self._ask(now, places=self._judged)
        if phase in (Phase.REPLACE, Phase.RESUME) and self._recovery.phase is phase:
            self._look_who_waits_alone(now)

    def _look_who_waits_alone(self, now: float) -> None:
        """Ask where replacements are that idle, as in a barrier of ranks that are past it, also
        where they may take that long."""
        incident = self._recovery.incident
        if incident is None or self._due is not None:
            return
        waited_for = set(self._recovery.silent()) & set(incident.replaced)
        if incident.phase is Phase.RESUME:
            waited_for &= progress_probe.behind(self._answers)
        for rank in sorted(waited_for & self._answers.keys()):
            a = self._answers[rank]
            base, since = self._quiet.get(rank, (a, now))
            if a.incarnation != base.incarnation or _works(base, a, now - since):
                base, since = a, now
            self._quiet[rank] = base, since
            if now - since >= ALONE and (incident.number, rank) not in self._told:
                self._told.add((incident.number, rank))
                self._alone[rank] = now - since
        if self._alone:
            self._ask(now, places=self._alone)

    def _placed(self, now: float) -> None:
        """Agents have reported where ranks are, or their time is up."""
        self._due, self._placing = None, False
        alone, self._alone = self._alone, {}
        for rank, seconds in alone.items():
            where = self._answers[rank].where if rank in self._answers else ""
            self._job.note(
                f"the replacement of rank {rank} has waited for {seconds:.0f} s without using a"
                f" processor: {where or standstill.NOWHERE}"
            )
        if not alone:
            self._stands(now)

    def _stands(self, now: float) -> None:
        """No rank makes progress, and where they are is known; if a rank has moved since, or no
        agent has reported, agents report again."""
        if not all(self._is_there(r, was) for r, was in self._judged.items()):
            return
        seconds = self._standstill.seconds(now)
        found = standstill.places(self._answers)
        step = min(a.step for a in self._answers.values())
        text = (
            f"no rank has made progress for {seconds:.1f} s, in step {step}:"
            f" {standstill.listed(found)}"
        )
        self._standstill.forget()
        if apart := standstill.apart(found):
            self._job.note(text)
            most = next(iter(found))
            self._faults.hung(
                {r: f"{where}, while most ranks are {most}" for r, where in apart.items()},
                now,
                now - seconds,
            )
        else:
            self._faults.stood_still(text, now, now - seconds)

    def _is_there(self, rank: int, was: from_agent.ProgressReport) -> bool:
        a = self._answers.get(rank)
        if a is None or a.patient or a.waiting or a.seconds < was.seconds:
            return False
        return (a.incarnation, a.step) == (was.incarnation, was.step)

    def _hung(self, ranks: Mapping[int, str], now: float) -> None:
        # a rank that waits where ranks wait makes no progress by design
        idle = [a.seconds for r in ranks if not (a := self._answers[r]).waiting]
        self._faults.hung(ranks, now, now - max(idle, default=0.0))

    def _quitter(self, verdict: progress_probe.Hung) -> int | None:
        """Return a rank that exited before finishing the step in which the ranks of the verdict
        wait for it."""
        behind = min(self._answers[r].step for r in verdict.ranks)
        left = [r for r, s in self._job.ranks.items() if s.quit and s.quit_at <= behind]
        return left[0] if left else None

    def _stopped(self, phase: Phase | None) -> dict[int, str]:
        """Return the ranks that were stopped by a signal at both calls and that the phase waits for
        or that are overdue, each with the reason."""
        assert self._first is not None
        incident = self._recovery.incident
        twice = {
            r: a
            for r, a in self._answers.items()
            if a.stopped and r in self._first and self._first[r].stopped
        }
        missing = set(self._recovery.silent())
        killed = incident.killed if incident is not None else ()
        name = phase.value if phase is not None else "the job"
        return {
            r: f"{a.where}, and {name} waits for it"
            for r, a in twice.items()
            if (r in missing or a.overdue) and r not in killed
        }

    def _look_who_is_still(self, now: float) -> None:
        for rank, a in self._answers.items():
            base, since = self._still.get(rank, (a, now))
            same = (base.incarnation, base.step, base.waiting) == (
                a.incarnation,
                a.step,
                a.waiting,
            ) and not a.patient
            if not same or _works(base, a, now - since):
                base, since = a, now
            self._still[rank] = base, since

    def _waits_alone(self, phase: Phase | None, now: float) -> dict[int, str]:
        """Ranks that have waited too long without using a CPU while all others wait for them:
        replacements, and ranks that an interruption has not stopped."""
        incident, settings = self._recovery.incident, self._job.settings
        if incident is None or phase not in WAITED_FOR:
            return {}
        waited_for = set(self._recovery.silent())
        if phase is Phase.INTERRUPT:  # before its first collective it may wait for its data
            waited_for &= {r for r, a in self._answers.items() if a.collectives}
            limit = settings.idle
        else:  # the same patience as with a first start
            waited_for &= set(incident.replaced)
            limit = settings.form
        if phase is Phase.RESUME:
            others = [a for r, a in self._answers.items() if r not in incident.replaced]
            waited_for &= progress_probe.behind(self._answers)
            if not any(a.overdue for a in others):
                return {}
        found = {}
        for rank in sorted(waited_for & set(self._still)):
            base, since = self._still[rank]
            since = max(since, incident.timeline.entered[-1][1])
            if (
                not base.waiting
                and not base.patient
                and now - since >= limit
                and rank not in incident.killed
            ):
                found[rank] = WAITED_FOR[phase].format(seconds=now - since, where=base.where)
        return found

    def _say(self, text: str) -> None:
        if text != self._said:  # the verdict repeats while a step is long
            self._said = text
            self._job.note(text)


def _works(base: from_agent.ProgressReport, now: from_agent.ProgressReport, seconds: float) -> bool:
    """Whether a rank has used a processor in the `seconds` between two answers."""
    return now.cpu - base.cpu > STILL * seconds + STILL
