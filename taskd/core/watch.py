"""Ranks that make no progress: the roll call, from the first complaint to the verdict. `roll_call.py` judges.

In a repair nobody complains, and what a rank is told to do may take long: copies of a large state, the script of a replacement. There a
call is held now and then, and only those are called hung that the kernel does not let run.
"""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core import roll_call
from taskd.core.faults import Faults
from taskd.core.incident import Phase
from taskd.core.listing import some
from taskd.core.recovery import Recovery
from taskd.core.state import JobState
from taskd.core.stragglers import Stragglers

REPAIRING = (Phase.REPLACE, Phase.REBUILD, Phase.RESTORE)


class Watch:
    """At most one roll call at a time. Agents complain again as long as a rank makes no progress, so nothing is kept up here."""

    def __init__(self, job: JobState, recovery: Recovery, faults: Faults) -> None:
        self._job, self._recovery, self._faults = job, recovery, faults
        self._due: float | None = None
        self._called = 0.0  # when the last call was held
        self._call = 0
        self._answers: dict[int, e.RankPresent] = {}
        self._first: dict[int, e.RankPresent] | None = None  # answers to the first call of the two
        self._pausing = False  # between the two calls
        self._last: tuple[dict[int, e.RankPresent], float] = ({}, 0.0)  # what the judgement before this one knew, and when
        self._said = ""
        self._stragglers = Stragglers()

    def stop(self) -> None:
        """Whatever was being found out has been overtaken."""
        self._due, self._first, self._pausing, self._last, self._said = None, None, False, ({}, 0.0), ""

    @property
    def due(self) -> float | None:
        """When to look again."""
        incident, look = self._recovery.incident, self._job.settings.look
        if self._due is not None or incident is None or incident.phase not in REPAIRING or look is None:
            return self._due
        entered = incident.timeline.entered[-1][1]
        return entered + max(look, 2 * (self._called - entered))

    def stalled(self, event: e.RankStalled, now: float) -> None:
        if self._job.protected and self._due is None and self._recovery.phase in (None, Phase.RESUME):
            self._first = None
            self._ask(now)

    def present(self, event: e.RankPresent, now: float) -> None:
        if self._due is None or self._pausing or event.call != self._call:
            return
        self._answers[event.rank] = event
        if self._stragglers.any(self._job.ranks, self._to_answer):
            return
        if self._first is None:
            self._first, self._pausing = dict(self._answers), True
            self._due = now + self._job.settings.between_calls
        else:
            self._judge(now)

    def tick(self, now: float) -> None:
        if (due := self.due) is None or now < due:
            return
        if self._due is None:
            self._first = None
            self._ask(now)
        elif self._pausing:
            self._ask(now)
        else:
            self._say(f"roll call: nothing was said about ranks [{some(self._missing())}]; their agents are waited for")
            self._due = None

    def _missing(self) -> list[int]:
        return [r for r in self._job.ranks if self._to_answer(r)]

    def _to_answer(self, number: int) -> bool:
        return number not in self._answers and not self._job.ranks[number].ended

    def _ask(self, now: float) -> None:
        self._call += 1
        self._called = now
        self._answers, self._pausing = {}, False
        self._due = now + self._job.settings.roll_call
        self._job.say(c.RollCall(self._call))

    def _judge(self, now: float) -> None:
        assert self._first is not None
        if self._recovery.phase in REPAIRING:
            self._due = None
            missing, phase = self._recovery.silent(), self._recovery.phase.value
            twice = {r for r, a in self._answers.items() if a.stopped and r in self._first and self._first[r].stopped}
            if stopped := twice & set(missing):
                self._faults.hung({r: f"{self._answers[r].where}, and {phase} waits for it" for r in stopped}, now)
            return
        before, when = self._last
        self._due, self._last = None, (dict(self._answers), now)
        verdict = roll_call.judge(self._first, self._answers, before, now - when)
        if isinstance(verdict, roll_call.Hung):
            self._faults.hung(verdict.ranks, now)
        elif isinstance(verdict, roll_call.Stuck):
            self._faults.stuck(verdict.why, now)
        else:
            self._say(f"roll call: {verdict.why}")

    def _say(self, text: str) -> None:
        if text != self._said:  # the same is found again and again while a step is long
            self._said = text
            self._job.note(text)
