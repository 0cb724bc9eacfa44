"""Saves the state periodically, while the job trains.

By time, or once so many more steps have been begun: how far the ranks are is known from heartbeats,
so the dump is that of a boundary soon after.
"""

from __future__ import annotations

from taskd.core.events import StepsWaited
from taskd.core.job.state import JobState, Part
from taskd.core.requests.leaving import Leaving


class Intervals(Part):
    def __init__(self, job: JobState, leaving: Leaving) -> None:
        self._job, self._leaving = job, leaving
        self._due: float | None = None  # None: the ranks do not train yet
        self._last: int | None = None  # in which interval of steps the newest dump is

    @property
    def deadline(self) -> float | None:
        return self._due

    def tick(self, now: float) -> None:
        if self._due is None or now < self._due:
            return
        seconds = self._job.settings.save_seconds
        assert seconds is not None
        self._due = now + seconds
        self._leaving.save(f"the state is saved every {seconds:g} s", now)

    def follow_up(self, now: float) -> None:
        seconds = self._job.settings.save_seconds
        if seconds is not None and self._due is None and self._job.protected:
            self._due = now + seconds

    def stepped(self, event: StepsWaited, now: float) -> None:
        every = self._job.settings.save_steps
        if every is None:
            return
        if self._last is None:
            self._last = event.before // every
        if event.step // every > self._last:  # each node tells, at its own times
            self._last = event.step // every
            self._leaving.save(f"the state is saved every {every} steps", now)

    def drop(self, why: str) -> None:
        """All ranks are restarted."""
        self._due = self._last = None
