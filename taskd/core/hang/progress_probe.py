"""Judges which rank is at fault when ranks make no progress, from two reports of every rank.

In a job that trains in lockstep, one rank that stops makes all others wait for it in a collective.
The state pages show *that* a rank makes no progress, not why. So each is probed for its step and
the number of collectives that it has begun in it. The rank that does not answer, or else the one
furthest behind, is the one that did not arrive. It counts as hung only if it is past its own limit
(a first step, a compilation and an announced long operation have none) and a second call finds it
in the same place.

On a busy machine healthy ranks are late and slow to answer. Between the two calls a working rank
has been running or runnable; its limit is stretched in proportion to the time it was runnable
without a CPU. A rank that is stopped, or waits for something that will not come, was neither.

A rank whose script has left the loop, or whose pass has ended, does not take another step: whoever
waits for it in a step waits in vain. Where neither goes on, the ranks do not run the same steps,
and no repair would change that.

If no rank is behind, all wait or all work. If none has used the CPU since the last judgment and all
are in the same place, the collective itself is stuck, and the communicators are rebuilt. Otherwise
the step is merely long. A first step may be long where others are overdue, but not idle: a
replacement in a collective that no other rank is in would else wait for minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType

from taskd.core.abbreviate import abbreviate
from taskd.messages.from_agent import ProgressReport

# of one CPU: ranks that wait in a collective use almost none, ranks that compute use one or more
IDLE = 0.05
# share of the time between two calls that a working rank must have been running or runnable; its
# answer takes ~1 ms of it
WORKS = 0.5
# the most a limit is stretched: the others do not wait forever for a rank that gets no CPU at all
STRETCH = 30.0
NONE: Mapping[int, int] = MappingProxyType({})


@dataclass(frozen=True)
class Hung:
    ranks: Mapping[int, str]  # why


@dataclass(frozen=True)
class Stuck:
    why: str


@dataclass(frozen=True)
class Waiting:
    why: str


@dataclass(frozen=True)
class Apart:
    """Ranks wait for others that have left their loops."""

    why: str


Verdict = Hung | Stuck | Apart | Waiting
Answers = Mapping[int, ProgressReport]


def judge(
    first: Answers,
    second: Answers,
    before: Answers,
    since: float,
    between: float = 0.0,
    idle: float = inf,
    ended: Mapping[int, int] = NONE,
) -> Verdict:
    """Judge the answers of two calls, `first` and `second`, `between` seconds apart, each with
    every rank. `before`: the answers of an earlier judgment, `since` seconds ago; empty: none.
    `idle`: seconds that a rank within its limit may idle while others are overdue. `ended`: the
    ranks whose pass has ended, each with the step that it does not take."""
    late = _late(second)
    # late at both calls: if the awaited rank proceeds between them, ranks that have not followed
    # yet look late too
    hung = {
        r: a
        for r, a in _late(first).items()
        if r in late and _same_place(a, late[r]) and _overdue(a, late[r], between)
    }
    if hung:
        return Hung({r: _why(late[r], len(second) - len(late)) for r in sorted(hung)})
    if apart := _apart(second, before, since, ended, idle):
        return apart
    if late:
        a = late[min(late)]
        busy = a.rank in first and a.overdue and not _overdue(first[a.rank], a, between)
        return Waiting(
            f"rank {a.rank} is behind the others ({_place(a)}), within its"
            f" limit{' on a busy machine' if busy else ''}"
        )
    overdue = any(a.overdue for a in second.values())
    early = [a for a in second.values() if not a.overdue and not _outside(a)]
    if not all(overdue and not a.patient and a.seconds >= idle for a in early):
        return Waiting("no rank is behind, and some are within their limit")
    if _stand(second, before, since):
        inside = [a for a in second.values() if not _outside(a)]
        if inside:
            a = min(inside, key=lambda a: (a.seconds, a.rank))
            here = sorted(a.rank for a in inside)
            who = "all ranks" if len(inside) == len(second) else f"ranks [{abbreviate(here)}]"
            return Stuck(
                f"{who} wait in the same collective for {a.seconds:.1f} s and none of them"
                f" uses the CPU ({_place(a)})"
            )
    return Waiting("no rank is behind: all are in the same place")


def behind(answers: Answers) -> set[int]:
    """Return the ranks that all others wait for, if any."""
    return set(_late(answers))


def _apart(
    answers: Answers, before: Answers, since: float, ended: Mapping[int, int], idle: float
) -> Apart | Waiting | None:
    """Whether ranks wait in collectives of a step that others do not take."""
    left = {r: a.step for r, a in answers.items() if a.left and not a.overdue}
    left |= {r: ended[r] for r in ended.keys() & answers.keys() if answers[r].waiting}
    waits = [
        a
        for a in answers.values()
        if not _outside(a)
        and a.overdue
        and a.collectives
        and any(a.step >= step for step in left.values())
    ]
    if not waits:
        return None
    step = min(a.step for a in waits)
    gone = sorted(r for r, first in left.items() if first <= step)
    how = "whose script has left the loop" if answers[gone[0]].left else "whose pass has ended"
    here = sorted(a.rank for a in waits)
    text = (
        f"ranks [{abbreviate(here)}] wait in step {step} for ranks [{abbreviate(gone)}],"
        f" {how} before that step"
    )
    there = {r: answers[r] for r in (*gone, *here)}
    # one that has left by an exception may be about to end, and would be replaced
    long = all(a.seconds >= idle for r in gone if (a := answers[r]).left)
    return Apart(text) if long and _stand(there, before, since) else Waiting(text)


def _stand(answers: Answers, before: Answers, since: float) -> bool:
    """Whether no rank has moved or used the CPU since the judgment before."""
    return bool(before) and all(
        _same_place(was := before.get(r), a) and was is not None and a.cpu - was.cpu < IDLE * since
        for r, a in answers.items()
    )


def _outside(a: ProgressReport) -> bool:
    """Whether the rank waits where ranks are meant to wait, or does not take another step."""
    return a.waiting or (a.left and not a.overdue)


def _late(answers: Answers) -> dict[int, ProgressReport]:
    """Return the ranks that all wait for: those that do not answer, else those furthest behind.
    Between these and the leading ranks there may be others that wait for them in an earlier
    collective in which not all have to wait (the root of a broadcast; its receivers proceed)."""
    silent = {r: a for r, a in answers.items() if not a.answered and not _outside(a)}
    inside = {r: a for r, a in answers.items() if not _outside(a)}
    if silent or not inside:
        return silent
    last = min(_progress(a) for a in inside.values())
    ahead = any(_progress(a) > last for a in inside.values()) or any(
        _outside(a) and a.step > last[0] for a in answers.values()
    )
    return {r: a for r, a in inside.items() if _progress(a) == last} if ahead else {}


def _overdue(before: ProgressReport, now: ProgressReport, between: float) -> bool:
    """Whether the rank is past its limit, stretched by the time it was kept from running."""
    if not now.overdue or now.stopped or before.incarnation != now.incarnation:
        return now.overdue
    ran, queued = now.cpu - before.cpu, now.queued - before.queued
    if between <= 0 or ran + queued < WORKS * between:
        return True
    return now.seconds >= now.limit * min((ran + queued) / max(ran, 1e-9), STRETCH)


def _progress(a: ProgressReport) -> tuple[int, int]:
    return a.step, a.collectives


def _same_place(before: ProgressReport | None, now: ProgressReport) -> bool:
    return (
        before is not None
        and before.incarnation == now.incarnation
        and before.answered == now.answered
        and _progress(before) == _progress(now)
    )


def _place(a: ProgressReport) -> str:
    return f"step {a.step}, {a.where}" + (
        f", collective {a.collectives}" if a.answered else ", no answer"
    )


def _why(a: ProgressReport, others: int) -> str:
    text = (
        f"no progress for {a.seconds:.1f} s in step {a.step}"
        f" ({a.where}{'' if a.answered else ', it does not answer'})"
    )
    return (
        f"{text} while {others} other{'s wait' if others != 1 else ' waits'} for it"
        if others
        else text
    )
