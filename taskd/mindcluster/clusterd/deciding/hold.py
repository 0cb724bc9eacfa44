"""ClusterD's pause: all ranks wait before the same step until it lets them continue."""

from __future__ import annotations

from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState
from taskd.core.lifecycle.finishing import Finishing

SECONDS = 600.0  # that it lasts if ClusterD does not say, as documented
HOLDER = "ClusterD"  # the ranks are paused for


class Hold:
    def __init__(self, job: JobState, pause: Pause, finishing: Finishing) -> None:
        self._job, self._pause, self._finishing = job, pause, finishing
        self.until: float | None = None  # None: there is no pause by ClusterD

    def begin(self, seconds: float, now: float) -> None:
        self.until = now + (seconds or SECONDS)
        self._pause.request("", HOLDER)
        self._finishing.check(now)

    def end(self, why: str, now: float) -> None:
        """Let the ranks continue, if ClusterD has paused them. `why`: "" if ClusterD ordered it."""
        if self.until is not None:
            self.until = None
            if why:
                self._job.note(f"the ranks continue: {why}")
            self._pause.release("", HOLDER)
            self._finishing.check(now)

    def forget(self) -> None:
        """The paused processes are gone."""
        self.until = None
