"""The account as plain data: what `taskd report --json` prints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from taskd.history.facts import Sample
from taskd.history.report import words
from taskd.history.report.account import Account, Count
from taskd.history.report.causes import to_blame
from taskd.history.report.figures import Times


def plain(account: Account) -> dict[str, Any]:
    """Times are Unix times, durations are in seconds. docs/report.md describes it."""
    job, lost = account.job, account.checkpoint
    last = job.samples[-1] if job.samples else Sample(job.last)
    return {
        "job": job.name,
        "summary": words.first(account),
        "now": None if account.now is None else vars(account.now),
        "began": job.began,
        "last": job.last,
        "end": None if job.end is None else vars(job.end),
        "nodes": job.nodes,
        "ranks": job.ranks,
        "managers": job.managers,
        "complete": not job.missing_start and not job.gaps,
        "step": last.step if last.step >= 0 else None,
        "total": last.total,
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
    told = zip(account.job.incidents, account.costs, account.faults, strict=True)
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
