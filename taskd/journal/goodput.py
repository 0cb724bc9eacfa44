"""What the time of a job went to, from its journal, and its goodput: the share of the time since
every rank was in its loop for the first time that was spent on steps that were new and were kept.
report/figures.py has the same definition, for a journal as a whole.

Every moment counts once, for the first of these that applies:

starting   from the start of the job, or a restart of all ranks, until every rank is in its loop
incident   from the fault until every rank has committed the interrupted step
paused     from a pause until the ranks go on
repeating  doing again what a repair or a restart has taken back
training   all the rest

The attempt that a fault breaks off counts as training, and its repetition as incident. A committed
step that a repair takes back counts as the time that an attempt usually takes the median rank.
After a restart of all ranks it is repeating until a `progress` entry has the step that had been
reached. While no manager runs, the ranks train.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from taskd.journal.reading import Record

STARTING, INCIDENT, PAUSED, REPEATING, TRAINING = KINDS = (
    "starting",
    "incident",
    "paused",
    "repeating",
    "training",
)
MOST_REPEATED = 7 * 86_400.0  # seconds; more is a journal that is wrong


@dataclass
class Spent:
    """Follows a job record by record. `seconds`: spent on each of KINDS, up to `time`."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS, 0.0))
    time: float | None = None  # None before the first record
    over: bool = False
    _before: float = 0.0  # seconds until every rank was in its loop for the first time
    _formed: bool = False
    _protected: bool = False
    _incident: bool = False
    _paused: bool = False
    _again: float = 0.0  # seconds of training that are repetition
    _step: int = -1  # the highest that all ranks had come to
    _peak: int = -1  # the step before which all is repeated
    _usual: float = 0.0

    @property
    def on(self) -> str:
        """What the time goes to now."""
        if not self._protected:
            return STARTING
        if self._incident:
            return INCIDENT
        if self._paused:
            return PAUSED
        return REPEATING if self._step < self._peak or self._again > 0 else TRAINING

    @property
    def goodput(self) -> float:
        """From 0 to 1; 0 before any time has passed in the ranks' loops."""
        total = sum(self.seconds.values()) - self._before
        return self.seconds[TRAINING] / total if total > 0 else 0.0

    def until(self, time: float) -> None:
        """Time has passed, and nothing has happened."""
        if self.time is None or self.over:
            return
        passed = max(time - self.time, 0.0)
        self.time += passed
        kind = self.on
        if kind == REPEATING and self._step >= self._peak:
            again = min(passed, self._again)
            self._again -= again
            self.seconds[REPEATING] += again
            kind, passed = TRAINING, passed - again
        self.seconds[kind] += passed

    def take(self, record: Record) -> None:
        if record.kind == "start" and not record.data.get("repeated"):
            self._start(record)
        self.until(record.time)
        follow = _FOLLOW.get(record.kind)
        if follow is not None:
            follow(self, record)

    def _start(self, record: Record) -> None:
        if record.data.get("successor") is not True:
            vars(self).update(vars(Spent()))  # the job starts from nothing
        elif self.time is None:
            # it ran before; what the manager finds is an incident of its own
            self._protected = self._formed = True
        if self.time is None:
            self.time = record.time

    def _protect(self, record: Record) -> None:
        if not self._formed:
            self._formed, self._before = True, self.seconds[STARTING]
        self._protected = True

    def _fault(self, record: Record) -> None:
        if self._protected and not self._incident:
            before = self.on
            # the fault is older than its entry; that time was given to what went on before
            late = record.time - record.number("began", record.time)
            late = min(max(late, 0.0), self.seconds[before])
            self.seconds[before] -= late
            self.seconds[INCIDENT] += late
        self._incident = True

    def _closed(self, record: Record) -> None:
        self._incident = False
        step, reached = record.whole("step", -1), record.whole("reached", -1)
        if 0 <= step < reached:
            again = self._again + (reached - step) * self._usual
            self._again = min(again, MOST_REPEATED)

    def _restart(self, record: Record) -> None:
        self._protected = self._incident = self._paused = False
        self._peak, self._step, self._again = max(self._peak, self._step), -1, 0.0

    def _pause(self, record: Record) -> None:
        self._paused = True

    def _continue(self, record: Record) -> None:
        self._paused = False

    def _progress(self, record: Record) -> None:
        self._usual = max(record.number("usual"), 0.0)
        self._step = record.whole("step", -1)

    def _end(self, record: Record) -> None:
        self.over = True


_FOLLOW = {
    "protected": Spent._protect,
    "fault": Spent._fault,
    "incident": Spent._closed,
    "restart": Spent._restart,
    "pause": Spent._pause,
    "continue": Spent._continue,
    "progress": Spent._progress,
    "end": Spent._end,
}
