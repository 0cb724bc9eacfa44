"""The account as plain data: what `taskd report --json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from taskd.report import words
from taskd.report.account import Account, Count
from taskd.report.causes import to_blame
from taskd.report.figures import Times


def plain(account: Account) -> dict[str, Any]:
    """Times are Unix times, durations are in seconds. docs/report.md describes it."""
    story, lost = account.story, account.checkpoint
    end = story.end
    return {
        "job": story.job,
        "summary": words.first(account),
        "now": None if account.now is None else vars(account.now),
        "began": story.began,
        "last": story.last,
        "end": None if end is None else {"ok": end[0], "reason": end[1], "time": end[2]},
        "nodes": story.nodes,
        "ranks": story.ranks,
        "managers": story.managers,
        "complete": not story.missing_start and not story.gaps,
        "step": story.samples[-1].step if words.known_step(account) else None,
        "total": story.total,
        "start_seconds": _round(account.start),
        "observed_seconds": _round(account.span[1] - account.span[0]),
        "lost_seconds": _round(account.lost_seconds),
        "paused_seconds": _round(account.paused_seconds),
        "goodput": _round(account.goodput),
        "steps_repeated": account.again,
        "restart_from_checkpoint": {
            "checkpoint_every": account.assumed.every,
            "checkpoint_unit": "steps" if account.assumed.steps else "seconds",
            "restart_seconds": _round(account.assumed.restart),
            "restart_measured": account.assumed.measured,
            "compared_lost_seconds": _round(lost[0]),
            "lost_seconds": _round(lost[1]),
        },
        "mttr": None if account.mttr is None else _times(account.mttr),
        "mttr_by_strategy": {name: _times(times) for name, times in account.strategies.items()},
        "mtbf_seconds": _round(account.mtbf),
        "by_node": _counts(account.nodes),
        "by_device": _counts(account.devices),
        "by_cause": _counts(account.causes),
        "by_code": _counts(account.codes),
        "slow_ranks": [
            {"rank": s.rank, "node": s.node, "ratio": _round(s.ratio), "seen": s.seen}
            for s in account.slow
        ],
        "incidents": list(_incidents(account)),
    }


def _incidents(account: Account) -> Iterable[dict[str, Any]]:
    """In order; `number` counts those of the report, managers count their own from 1."""
    told = zip(account.story.incidents, account.costs, account.faults, strict=True)
    for number, (incident, cost, faults) in enumerate(told, 1):
        yield {
            "number": number,
            "began": incident.began,
            "seconds": _round(incident.seconds),
            "result": incident.result,
            "strategy": incident.strategy,
            "causes": sorted({f.cause for f in to_blame(faults)}),
            "codes": sorted({f.code for f in faults if f.code}),
            "faults": list(incident.faults),
            "replaced": list(incident.ranks),
            "step": incident.step,
            "reached": incident.reached,
            "phases": {phase: _round(seconds) for phase, seconds in incident.phases.items()},
            "lost_seconds": _round(cost.seconds),
            "steps_repeated": cost.again,
            "steps_repeated_at_least": cost.least,
            "restart_from_checkpoint_seconds": _round(cost.checkpoint),
        }


def _times(times: Times) -> dict[str, Any]:
    return {
        "repairs": times.count,
        "mean": _round(times.mean),
        "median": _round(times.median),
        "p95": _round(times.p95),
        "max": _round(times.most),
        "phases": {phase: _round(seconds) for phase, seconds in times.phases.items()},
    }


def _counts(counts: Sequence[Count]) -> list[dict[str, Any]]:
    return [
        {
            "name": c.name,
            "incidents": [n + 1 for n in c.incidents],
            "lost_seconds": _round(c.seconds),
            "mtbf_seconds": _round(c.mtbf),
        }
        for c in counts
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
