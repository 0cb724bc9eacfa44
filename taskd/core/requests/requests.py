"""Carries out what operators request of a running job."""

from __future__ import annotations

from taskd.core.incident.machine import Recovery
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState
from taskd.core.lifecycle.finishing import Finishing
from taskd.messages import from_operator


class Requests:
    def __init__(
        self, job: JobState, recovery: Recovery, pause: Pause, finishing: Finishing
    ) -> None:
        self._job, self._recovery = job, recovery
        self._pause, self._finishing = pause, finishing

    def pause(self, event: from_operator.PauseRequested, now: float) -> None:
        self._pause.request(event.request)
        self._finishing.check(now)

    def resume(self, event: from_operator.ContinueRequested, now: float) -> None:
        self._pause.release(event.request)
        self._finishing.check(now)

    def switch_recovery(self, event: from_operator.RecoverySwitched, now: float) -> None:
        self._job.switch(event.on)
        text = "faults are repaired"
        if not event.on:
            text = "faults are not repaired until it is on again; the next one ends the job"
        if self._recovery.incident is not None:
            text += "; the incident under way goes on as it began"
        self._job.note(f"recovery is {'on' if event.on else 'paused'}: {text}")
        self._job.answer(event.request, True, text)
