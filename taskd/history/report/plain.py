"""The account as plain data: what `taskd report --json` prints."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any

from taskd.history.facts import Sample
from taskd.history.report import words
from taskd.history.report.account import Account
from taskd.history.report.causes import to_blame


def plain(account: Account) -> dict[str, Any]:
    """Times are Unix times, durations are in seconds. docs/report.md describes it."""
    job, lost = account.job, account.checkpoint
    last = job.samples[-1] if job.samples else Sample(job.last)
    told = {
        "job": job.name,
        "summary": words.first(account),
        "now": account.now,
        "began": job.began,
        "last": job.last,
        "end": job.end,
        "nodes": job.nodes,
        "ranks": job.ranks,
        "managers": job.managers,
        "complete": not job.missing_start and not job.gaps,
        "step": last.step if last.step >= 0 else None,
        "total": last.total,
        "start_seconds": account.start,
        "observed_seconds": account.span[1] - account.span[0],
        "lost_seconds": account.lost_seconds,
        "paused_seconds": account.paused_seconds,
        "slow_rank_seconds": account.slow_seconds,
        "shrunk_seconds": account.shrunk_seconds,
        "goodput": account.goodput,
        "steps_repeated": account.again,
        "step_seconds": None
        if (steps := account.steps) is None
        else {"attempts": steps.attempts, "median": steps.median, "p99": steps.p99},
        "settings": job.settings,
        "machines": [{"node": node, **job.about[node]} for node in sorted(job.about)],
        "restart_from_checkpoint": {
            "checkpoint_every": account.assumed.every,
            "checkpoint_unit": "steps" if account.assumed.steps else "seconds",
            "restart_seconds": account.assumed.restart,
            "restart_measured": account.assumed.measured,
            "compared_lost_seconds": lost[0],
            "lost_seconds": lost[1],
        },
        "mttr": account.mttr,
        "mttr_by_strategy": account.strategies,
        "mtbf_seconds": account.mtbf,
        "by_node": account.nodes,
        "by_device": account.devices,
        "by_cause": account.causes,
        "by_code": account.codes,
        "slow_ranks": [{n: v for n, v in vars(s).items() if n != "at"} for s in account.slow],
        "shrunk": [
            {
                "began": was.since,
                "seconds": (was.until or was.since) - was.since,
                **{name: getattr(was, name) for name in ("ranks", "of", "shares", "away")},
            }
            for was in job.shrunken
        ],
        "incidents": list(_incidents(account)),
    }
    plain: dict[str, Any] = _plain(told)
    return plain


def _incidents(account: Account) -> Iterable[dict[str, Any]]:
    """In order; `number` counts those of the report, managers count their own from 1."""
    told = zip(account.job.incidents, account.costs, account.faults, strict=True)
    for number, (incident, cost, faults) in enumerate(told, 1):
        yield {
            "number": number,
            "began": incident.began,
            "seconds": incident.seconds,
            "result": incident.result,
            "strategy": incident.strategy,
            "causes": sorted({f.cause for f in to_blame(faults)}),
            "codes": sorted({f.code for f in faults if f.code}),
            "faults": incident.faults,
            "replaced": incident.ranks,
            "step": incident.step,
            "reached": incident.reached,
            "phases": incident.phases,
            **vars(cost),
            "deaths": incident.deaths,
        }


def _plain(value: Any) -> Any:
    """Without dataclasses, and to the microsecond."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(vars(value)) if is_dataclass(value) else value
