"""Who is at fault when ranks make no progress? Every rank is asked how far it has come, twice.

In a job that trains in lockstep one rank that stops makes all others stop too: they wait for it in
a collective. The state pages say
*that* a rank makes no progress, not why. So each is asked for its step and for the number of
collectives that it has begun in it. Who does not answer, or is furthest behind, is the one that did
not arrive. It is only called hung when it is past its own limit (a first step, a compilation and an
announced long operation have none) and when a second call finds it where it was.

A busy machine makes healthy ranks late and dumb. Between the two calls a rank that works has been
on a processor or ready for one; what it has waited there stretches its limit as much. One that is
stopped, or waits for what will not come, was neither.

When nobody is behind, all wait or all work. If nobody has used the processor since the last call
about the same place, the collective itself is stuck, and the communicators are made anew. Otherwise
the step is merely long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.messages.from_agent import ProgressReport

# of one processor: ranks that wait in a collective use about nothing, ranks that compute use one or
# more
IDLE = 0.05
# of the time between two calls that a rank must have run, or been ready to, to be one that works:
# its answer takes ~1 ms of it
WORKS = 0.5
# at most so many times longer; nobody has to wait forever for a rank that gets no processor at all
STRETCH = 30.0


@dataclass(frozen=True)
class Hung:
    ranks: Mapping[int, str]  # why


@dataclass(frozen=True)
class Stuck:
    why: str


@dataclass(frozen=True)
class Waiting:
    why: str


Verdict = Hung | Stuck | Waiting
Answers = Mapping[int, ProgressReport]


def judge(
    first: Answers, second: Answers, before: Answers, since: float, between: float = 0.0
) -> Verdict:
    """`first` and `second`: two calls `between` seconds apart, each with every rank. `before`: the
    answers of an earlier judgement, `since` seconds ago; empty: none."""
    late = _late(second)
    # late at both calls: when the one that all waited for goes on between them, those that have not
    # gone on yet look like it
    hung = {
        r: a
        for r, a in _late(first).items()
        if r in late and _same_place(a, late[r]) and _overdue(a, late[r], between)
    }
    if hung:
        return Hung({r: _why(late[r], len(second) - len(late)) for r in sorted(hung)})
    if late:
        a = late[min(late)]
        busy = a.rank in first and a.overdue and not _overdue(first[a.rank], a, between)
        return Waiting(
            f"rank {a.rank} is behind the others ({_place(a)}), within its"
            f" limit{' on a busy machine' if busy else ''}"
        )
    if not all(a.overdue or a.waiting for a in second.values()):
        return Waiting("no rank is behind, and some are within their limit")
    same = before and all(_same_place(before.get(r), a) for r, a in second.items())
    if same and all(a.cpu - before[r].cpu < IDLE * since for r, a in second.items()):
        inside = [a for a in second.values() if not a.waiting]
        if inside:
            a = min(inside, key=lambda a: (a.seconds, a.rank))
            return Stuck(
                f"all ranks wait in the same collective for {a.seconds:.1f} s and none of them"
                f" works ({_place(a)})"
            )
    return Waiting("no rank is behind: all are in the same place")


def behind(answers: Answers) -> set[int]:
    """Whom all others wait for, if for anybody."""
    return set(_late(answers))


def _late(answers: Answers) -> dict[int, ProgressReport]:
    """Whom all wait for: who does not answer, else who is furthest behind. Between these and the
    first of all there may be ranks that wait for them in an earlier collective, one that not
    everybody has to wait in (the root of a broadcast, whose receivers go on)."""
    silent = {r: a for r, a in answers.items() if not a.answered and not a.waiting}
    inside = {r: a for r, a in answers.items() if not a.waiting}
    if silent or not inside:
        return silent
    last = min(_progress(a) for a in inside.values())
    ahead = any(_progress(a) > last for a in inside.values()) or any(
        a.waiting and a.step > last[0] for a in answers.values()
    )
    return {r: a for r, a in inside.items() if _progress(a) == last} if ahead else {}


def _overdue(before: ProgressReport, now: ProgressReport, between: float) -> bool:
    """Whether the rank is past its limit, which is as much longer as it was kept from running."""
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
