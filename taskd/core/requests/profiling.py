"""Which ranges the ranks profile, and which rank makes the others wait.

Operators, the documented file and the advisor choose what is profiled; the latest choice counts.
Every few seconds it is known how long each rank's steps took and how much of that it waited for
others: for DDP's gradients by the heartbeats, and in collectives of the script too where these are
profiled. In lockstep all steps take equally long: the rank that hardly waits is the one the others
wait for.
"""

from __future__ import annotations

from dataclasses import dataclass

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.job.state import JobState, Part
from taskd.messages import from_agent, from_operator, from_rank, to_rank
from taskd.messages.to_rank import RANGES

# A rank is slow if the median rank waits for so much of a step longer than it does. Less is not
# worth a night's sleep, and equal ranks on a busy machine differ, too.
SHARE = 0.15
COMMUNICATION = RANGES.index("CommunicationOperator")
SURE = 2  # reports in a row, one every few seconds, before it is named, and before it is not
MOST_NAMED = 10  # in one line
FRESH = 1.0  # seconds for which a median is used
OLD = 30.0  # seconds after which a rank's report does not count any more
CHANGED = 1.5  # times by which a slow rank's share of a step changes before that is reported


@dataclass
class _Rank:
    """`since`: the first step in which it was slow, and `began`: when it began that. `sure`:
    reports in a row that say otherwise than `slow` does. `said`: the share of a step that the
    others wait for it, as last reported."""

    at: float
    taken: float
    waited: float
    slow: bool = False
    since: int = -1
    began: float = 0.0
    sure: int = 0
    said: float = 0.0


class Profiling(Part):
    def __init__(self, job: JobState) -> None:
        self._job = job
        self._on: tuple[int, ...] = ()
        self._ranks: dict[int, _Rank] = {}
        self._middle = (float("-inf"), 0.0)  # when it was found, and the median rank's wait

    @property
    def ranges(self) -> tuple[str, ...]:
        """What is profiled, in words."""
        return tuple(RANGES[number] for number in self._on)

    # -- the switch --------------------------------------------------------------------------------

    def requested(self, event: from_operator.ProfileRequested, now: float) -> None:
        self._job.answer(event.request, True, self._switch(event.ranges, "an operator"))

    def switched(self, event: e.ProfileSwitched, now: float) -> None:
        self._switch(event.ranges, event.by)

    def _switch(self, ranges: tuple[int, ...], by: str) -> str:
        ranges = tuple(sorted(set(ranges)))
        text = f"ranks profile {', '.join(RANGES[r] for r in ranges) or 'nothing'}"
        if ranges != self._on:
            self._on = ranges
            for number in self._ranks:
                self._forget(number)
            self._ranks.clear()
            self._job.note(f"{text}, requested by {by}")
            self._job.say(to_rank.Profile(ranges))
        return text

    def registered(self, event: from_agent.AgentJoined, now: float) -> None:
        """An agent may have missed the order, or has one of an earlier manager."""
        if event.profile == self._on:
            return
        if event.profile and not self._on and self._job.election.candidate.term > 1:
            self._on = event.profile  # as the previous manager had it
        else:
            self._job.say(to_rank.Profile(self._on))

    # -- slow ranks --------------------------------------------------------------------------------

    def took(self, event: from_rank.StepTimes, now: float) -> None:
        """A profiled rank's report."""
        if event.steps and self._on:
            taken, waited = event.taken / event.steps, event.waited / event.steps
            self._note(event.rank, taken, waited, now)
            self._judge(event.rank, event.step - event.steps + 1, event.steps, now)

    def waited(self, event: e.StepsWaited, now: float) -> None:
        """What is known of all ranks. Reports that count more of their waiting are better."""
        if not self._job.protected or COMMUNICATION in self._on:
            return
        ranks = [rank for rank in event.ranks if rank in self._job.ranks]
        for rank, waited in zip(event.ranks, event.waited, strict=True):
            if rank in self._job.ranks:
                self._note(rank, event.taken, waited, now)
        for rank in ranks:
            self._judge(rank, event.before, event.step - event.before, now)

    def _note(self, number: int, taken: float, waited: float, now: float) -> None:
        """Seconds that a step has taken the rank, and how much of it it has waited."""
        rank = self._ranks.setdefault(number, _Rank(now, taken, waited))
        rank.at, rank.taken, rank.waited = now, taken, min(waited, taken)

    def _judge(self, number: int, first: int, steps: int, now: float) -> None:
        """Compare the rank's last steps, from `first` on, with the latest ones of the others."""
        rank = self._ranks[number]
        late = self._late(rank, now)
        share = (late or 0.0) / rank.taken if rank.taken else 0.0
        far = max(share, rank.said) > CHANGED * min(share, rank.said)
        changed = rank.slow and late is not None and far
        if (late is not None) == rank.slow and not changed:
            rank.sure = 0
            return
        if not rank.sure and not rank.slow:
            rank.since, rank.began = first, now - steps * rank.taken
        rank.sure += 1
        if rank.sure < SURE:
            return
        rank.sure, rank.slow = 0, late is not None
        if late is None:
            text = f"rank {number} no longer makes the others wait"
        else:
            text = (
                f"rank {number} makes the others wait {late * 1e3:.0f} ms in each step of"
                f" {rank.taken * 1e3:.0f} ms, since step {rank.since}"
            )
        state = "changed" if changed else "begun" if rank.slow else "over"
        if not changed:
            self._job.say(c.Note(text, journaled=True))
        self._tell(number, rank, state, late or 0.0)

    def _tell(self, number: int, rank: _Rank, state: str, late: float) -> None:
        rank.said = late / rank.taken if rank.taken else 0.0
        about = {"rank": number, "state": state, "since": rank.since, "began": rank.began}
        self._job.journal("slow", **about, late=late, step=rank.taken)

    def _forget(self, number: int) -> None:
        rank = self._ranks[number]
        if rank.slow:
            rank.slow = False
            self._tell(number, rank, "over", 0.0)

    def _late(self, rank: _Rank, now: float) -> float | None:
        """How many seconds per step the others wait longer than this rank; None if it is as fast as
        they are."""
        if len(self._ranks) < 2:
            return None
        found, middle = self._middle
        if not 0 <= now - found < FRESH:  # looking at all ranks for each report would cost too much
            for number in [n for n, r in self._ranks.items() if now - r.at >= OLD]:
                self._forget(number)
                del self._ranks[number]
            waits = sorted(r.waited for r in self._ranks.values())
            self._middle = _, middle = now, waits[len(waits) // 2]
        late = middle - rank.waited
        return late if late > SHARE * rank.taken else None

    def slow(self) -> tuple[tuple[int, float, float], ...]:
        """The ranks that the others wait for: rank, seconds a step, seconds of a step; the slowest
        first."""
        middle = self._middle[1]
        found = [(n, middle - r.waited, r.taken) for n, r in self._ranks.items() if r.slow]
        return tuple(sorted(found, key=lambda each: -each[1])[:MOST_NAMED])

    def drop(self, why: str) -> None:
        """All ranks are restarted; what is profiled stays."""
        self._ranks.clear()
