"""The times of ranks in a round from the journal: of every rank, or of the last ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from taskd.core.incident.phases import FINAL, Phase

# What happens to a rank in a round, in order, and the phase that ends with it.
EVENTS = {
    "interrupted": "INTERRUPT",
    "ready": "REPLACE",
    "rebuilt": "REBUILD",
    "restored": "RESTORE",
    "committed": "RESUME",
}
PHASES = tuple(phase.value for phase in Phase if phase not in FINAL)

MOST = 1_000_000  # ranks; more is an invalid entry
WORST = 24  # ranks of a large job that are shown


@dataclass(frozen=True)
class Round:
    """The times of events on each of `ranks`, in ms after the incident began; NaN if an event did
    not happen. For a large job the journal has only the last ranks; `total` is the number of
    all."""

    number: int
    strategy: str
    began: float
    total: int
    ranks: np.ndarray
    times: dict[str, np.ndarray]
    first: dict[str, float]  # of all ranks, the first moment of each event


def read(told: Any) -> Round | None:
    """None for an invalid round."""
    if not isinstance(told, dict):
        return None
    known = {event: told[event] for event in EVENTS if event in told}
    if all(isinstance(moments, list) for moments in known.values()):
        times = {event: _moments(moments) for event, moments in known.items()}
        total = max((len(t) for t in times.values()), default=0)
        ranks = np.arange(total)
        times = {
            e: np.pad(t, (0, total - len(t)), constant_values=np.nan) for e, t in times.items()
        }
        first = {e: float(np.nanmin(t)) for e, t in times.items() if not np.isnan(t).all()}
    else:
        total, ranks, times, first = _last(known)
    began = told.get("began")
    number = told.get("round")
    strategy = told.get("strategy")
    return Round(
        number if type(number) is int else 0,
        strategy if isinstance(strategy, str) else "",
        _ms(began, 0.0),
        total,
        ranks,
        times,
        first,
    )


def latest(told: Round, replaced: Sequence[int], most: int | None = WORST) -> np.ndarray:
    """The places of the ranks that were last in any event, and of the replaced ones, the latest
    first: about `most` of them, None for all."""
    every = np.arange(len(told.ranks))
    if most is not None and len(every) > most:
        places: set[int] = set()
        each = -(-most // len(EVENTS))
        for times in told.times.values():
            known = np.where(np.isnan(times), -np.inf, times)
            last = np.argpartition(known, -each)[-each:]
            places.update(int(n) for n in last if known[n] > -np.inf)
        found = np.nonzero(np.isin(told.ranks, np.array(replaced, dtype=np.int64)))[0]
        places.update(found[:most].tolist())
        every = np.array(sorted(places), dtype=np.int64)
    if not len(every) or not told.times:
        return every
    end = np.array([np.nan_to_num(t, nan=-1.0)[every] for t in told.times.values()]).max(axis=0)
    return every[np.lexsort((told.ranks[every], -end))]


def _last(known: dict[str, Any]) -> tuple[int, np.ndarray, dict[str, np.ndarray], dict[str, float]]:
    """Of a large job: each event as {"ranks": how many, "first": ms, "last": [[rank, ms], ...]}."""
    total, first, found = 0, {}, {}
    for event, said in known.items():
        if not isinstance(said, dict):
            continue
        count = said.get("ranks")
        if type(count) is int:
            total = max(total, min(count, MOST))
        begun = _ms(said.get("first"))
        if begun == begun:
            first[event] = begun
        rows = said.get("last")
        found[event] = {
            row[0]: _ms(row[1])
            for row in (rows if isinstance(rows, list) else ())
            if isinstance(row, list) and len(row) == 2 and type(row[0]) is int and row[0] >= 0
        }
    ranks = np.array(sorted({rank for rows in found.values() for rank in rows}), dtype=np.int64)
    times = {
        event: np.array([rows.get(int(rank), np.nan) for rank in ranks], dtype=np.float64)
        for event, rows in found.items()
    }
    return max(total, len(ranks)), ranks, times, first


def _moments(told: list[Any]) -> np.ndarray:
    try:
        moments = np.array(told[:MOST], dtype=np.float64)
        if moments.ndim == 1:
            return np.where(np.isfinite(moments), moments, np.nan)
    except (TypeError, ValueError, OverflowError):
        pass
    return np.array([_ms(t) for t in told[:MOST]], dtype=np.float64)


def _ms(value: Any, default: float = np.nan) -> float:
    if type(value) not in (int, float) or not abs(value) < 1e15:
        return default
    return float(value)
