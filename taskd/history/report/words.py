"""The account in words: the first sentences of a report, which answer four questions. Is it
training now, what happened, what did it cost, which node or rank is to blame?"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from taskd.history.facts import OPEN, rate, span
from taskd.history.report.account import Account, Count
from taskd.history.report.causes import GROWTH


def first(account: Account) -> str:
    """The sentences, in the order of the questions."""
    return " ".join([state(account), cost(account), *away(account), *blame(account)])


def state(account: Account) -> str:
    job = account.job
    at = f" at step {job.samples[-1].step:,}" if known_step(account) else ""
    if job.end is not None:
        how = "well" if job.end.ok else "with an error"
        return f"Ended {how}{at}, {clock(job.end.time)}: {_closed(job.end.reason)}"
    if account.now is not None:
        now = account.now
        at = f" at step {now.step:,}" if now.step >= 0 else ""
        speed = f", {rate(now.rate)}" if now.rate and now.state == "training" else ""
        word = "Training now" if now.state == "training" else f"Now {now.state}"
        detail = f" ({now.detail})" if now.state != "training" and now.detail else ""
        return f"{word}{at}{speed}{detail}."
    left = f"; its manager had left: {job.left}" if job.left else ""
    return (
        f"Last heard {clock(job.last)}, when it was {_doing(account)}{at}{left}; its journal has"
        " no end, and no manager was asked or answers."
    )


def known_step(account: Account) -> bool:
    return bool(account.job.samples) and account.job.samples[-1].step >= 0


def cost(account: Account) -> str:
    job = account.job
    length = span(max(job.last, account.span[1]) - job.began)
    count = len(job.incidents)
    if not job.protected and not job.missing_start and not count:
        return f"In {length} not every rank has come to its protected loop; no incident."
    if not count:
        return f"No incident in {length}."
    back = f" ({account.growth} brought nodes back)" if account.growth else ""
    text = f"{counted(count, 'incident')}{back} in {length} cost {span(account.lost_seconds)}"
    if account.again:
        text += f" and {counted(account.again, 'repeated step')}"
    return text + "."


def away(account: Account) -> Iterable[str]:
    job = account.job
    if not job.shrunken:
        return
    whole = sum((s.until or s.since) - s.since for s in job.shrunken)
    least = min(job.shrunken, key=lambda s: s.ranks)
    at_least = "at least " if len({s.ranks for s in job.shrunken}) > 1 else ""
    lost = span(account.shrunk_seconds)
    yield (
        f"For {span(whole)}, {at_least}{least.ranks:,} of {least.of:,} ranks trained, which cost"
        f" {lost}."
    )
    if (now := job.shrunk) is not None:
        have = "has" if now.of - now.ranks == 1 else "have"
        yield f"{_upper(now.who)} {have} been away since {clock(now.since)}."


def blame(account: Account) -> Iterable[str]:
    """Nobody is to blame for what happened once, or everywhere equally often."""
    count = len(account.job.incidents) - account.growth
    causes = [cause for cause in account.causes if cause.name != GROWTH]
    if count == 1:
        found = account.nodes[:1]
        where = f" on {found[0].name}" if found else ""
        its = "The cause of the other" if account.growth else "Its cause"
        yield f"{its}: {causes[0].name}{where}." if causes else ""
    else:
        for counts, what in ((account.nodes, "node"), (account.devices, "device")):
            if (worst := most_to_blame(counts, account.job.nodes, what)) is not None:
                times = len(worst.incidents)
                every = times == count and not account.growth
                yield f"{_upper(worst.name)} is in {'all' if every else times} of them."
                break
        else:
            if causes:
                top = causes[0]
                yield f"No node or device stands out; most often: {top.name}" + (
                    f" ({len(top.incidents)} of {count})."
                )
    if account.slow:
        rank = account.slow[0]
        yield (
            f"Rank {rank.rank} on node {rank.node} was slow:"
            f" up to {rank.ratio:.2f} times the median step."
        )


def most_to_blame(counts: Sequence[Count], nodes: int, what: str) -> Count | None:
    """The one that is in more incidents than any other, and in two at least. The only node of a
    job is in all of them, which says nothing."""
    if not counts or (what == "node" and nodes < 2) or len(counts[0].incidents) < 2:
        return None
    second = len(counts[1].incidents) if len(counts) > 1 else 0
    return counts[0] if len(counts[0].incidents) > second else None


def counted(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def figures(account: Account) -> Iterable[tuple[str, str, str]]:
    """The headline figures of a report: name, value, note."""
    if account.goodput is not None:
        observed = span(account.span[1] - account.span[0])
        yield "goodput", percent(account.goodput), f"of {observed} since all were protected"
    if (steps := account.steps) is not None:
        note = f"median of {counted(steps.attempts, 'attempt')}; 99 % took up to {span(steps.p99)}"
        yield "a step", span(steps.median), note
    again = counted(account.again, "repeated step")
    yield "lost to incidents", span(account.lost_seconds), again
    if (times := account.mttr) is not None:
        yield "MTTR", span(times.mean), f"median {span(times.median)}, most {span(times.max)}"
    if account.mtbf is not None:
        faults = len(account.job.incidents) - account.growth
        yield "MTBF", span(account.mtbf), counted(faults, "incident")
    lost, other = account.checkpoint
    if other > 0:
        yield "by restarts instead", span(other), f"in place of {span(lost)}, see below"
    if account.start is not None:
        yield "to start", span(account.start), "until all were protected"
    if account.paused_seconds:
        yield "paused", span(account.paused_seconds), "by an operator"
    if account.job.slow.over:
        waited = "of steps in which the others waited for a slow rank"
        yield "slow ranks", span(account.slow_seconds), waited
    if account.job.shrunken:
        yield "shrunk", span(account.shrunk_seconds), "of steps that took longer, ranks were away"


def percent(share: float) -> str:
    """Rounded so that less than everything never reads 100 %."""
    for digits in (1, 2, 3):
        text = f"{share:.{digits}%}"
        if share == 1.0 or not text.startswith("100"):
            return text
    return "99.999%"


def clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def assumed(account: Account) -> str:
    """What incidents are compared with, in words; "" if with nothing."""
    said = account.assumed
    if said.restart is None or account.checkpoint[1] <= 0:
        return ""
    how = f"{span(said.restart)}{', as long as this job took to start' if said.measured else ''}"
    if said.every is None:
        return (
            f"Compared with a restart of all ranks, which takes {how}. No repeated step is counted"
            " for it: --checkpoint-every says how many there would be."
        )
    every = f"{said.every:,.0f} steps" if said.steps else span(said.every)
    return (
        f"Compared with a restart of all ranks from the last checkpoint: with one every {every}, as"
        f" --checkpoint-every says; a restart takes {how}."
    )


def _doing(account: Account) -> str:
    job = account.job
    last = job.incidents[-1] if job.incidents else None
    if last is not None and last.result == OPEN and last.ended >= job.last - 1.0:
        phase = f", in {last.entered[-1][1]}" if last.entered else ""
        return f"in the repair of an incident{phase}"
    if job.paused and job.paused[-1][1] >= job.last:
        return "paused"
    return "training" if job.protected or job.missing_start else "starting"


def _closed(text: str) -> str:
    text = text.strip() or "no reason is given"
    return text if text.endswith(".") else f"{text}."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
