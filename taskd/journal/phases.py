"""How long an incident was in each phase, from the `phase` entries of a journal."""

from __future__ import annotations

from collections.abc import Sequence


def spent(entered: Sequence[tuple[str, float]], now: float) -> dict[str, float]:
    """Seconds in each phase. `entered`: the phases in order, and when each began; the last goes on
    until `now`."""
    phases: dict[str, float] = {}
    ends = [*(at for _, at in entered[1:]), now]
    for (phase, begin), end in zip(entered, ends, strict=bool(entered)):
        phases[phase] = phases.get(phase, 0.0) + max(end - begin, 0.0)
    return phases
