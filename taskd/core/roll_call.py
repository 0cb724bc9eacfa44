"""Who is at fault when ranks make no progress? Every rank is asked how far it has come, twice.

In a job that trains in lockstep one rank that stops makes all others stop too: they wait for it in a collective. The state pages say
*that* a rank makes no progress, not why. So each is asked for its step and for the number of collectives that it has begun in
it. The one that is behind, or does not answer, is the one that did not arrive. It is only called hung when it is past its own
limit (a first step, a compilation and an announced long operation have none) and when a second call finds it where it was.

When nobody is behind, all wait or all work. If nobody has used the processor since the last call about the same place, the collective
itself is stuck, and the communicators are made anew. Otherwise the step is merely long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from taskd.core.events import RankPresent

IDLE = 0.05  # of one processor: ranks that wait in a collective use about nothing, ranks that compute use one or more


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
Answers = Mapping[int, RankPresent]


def judge(first: Answers, second: Answers, before: Answers, since: float) -> Verdict:
    """`first` and `second`: two calls a moment apart, each with every rank. `before`: the answers of an earlier judgement, `since`
    seconds ago; empty: none."""
    behind = {r: a for r, a in second.items() if _behind(a, second) and _same_place(first.get(r), a)}
    hung = {r: a for r, a in behind.items() if a.overdue}
    if hung:
        return Hung({r: _why(a, second) for r, a in sorted(hung.items())})
    late = sorted(r for r, a in second.items() if _behind(a, second))
    if late:
        a = second[late[0]]
        return Waiting(f"rank {a.rank} is behind the others ({_place(a)}), within its limit")
    if not all(a.overdue or a.waiting for a in second.values()):
        return Waiting("no rank is behind, and some are within their limit")
    same = before and all(_same_place(before.get(r), a) for r, a in second.items())
    if same and all(a.cpu - before[r].cpu < IDLE * since for r, a in second.items()):
        inside = [a for a in second.values() if not a.waiting]
        if inside:
            a = min(inside, key=lambda a: (a.seconds, a.rank))
            return Stuck(f"all ranks wait in the same collective for {a.seconds:.1f} s and none of them works ({_place(a)})")
    return Waiting("no rank is behind: all are in the same place")


def _behind(a: RankPresent, answers: Answers) -> bool:
    if a.waiting:
        return False
    if not a.answered:
        return True
    return any(o.waiting and o.step > a.step or (o.answered and not o.waiting and _progress(o) > _progress(a)) for o in answers.values())


def _progress(a: RankPresent) -> tuple[int, int]:
    return a.step, a.collectives


def _same_place(before: RankPresent | None, now: RankPresent) -> bool:
    return (
        before is not None
        and before.incarnation == now.incarnation
        and before.answered == now.answered
        and _progress(before) == _progress(now)
    )


def _place(a: RankPresent) -> str:
    return f"step {a.step}, {a.where}" + (f", collective {a.collectives}" if a.answered else ", no answer")


def _why(a: RankPresent, answers: Answers) -> str:
    others = sum(1 for o in answers.values() if o.rank != a.rank and not _behind(o, answers))
    text = f"no progress for {a.seconds:.1f} s in step {a.step} ({a.where}{'' if a.answered else ', it does not answer'})"
    return f"{text} while {others} other{'s wait' if others != 1 else ' waits'} for it" if others else text
