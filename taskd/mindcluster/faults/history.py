"""What is known of a device's codes as plain values, for the next manager."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from taskd.mindcluster.faults.chips import MOST_TIME, Chip, Fault
from taskd.mindcluster.faults.counting import Count, Span

MOST = 1e12  # seconds since 1970
MOST_TIMES = 100  # occurrences of a code that any rule counts


class Damaged(ValueError):
    """The values are not what `count_of` and `span_of` have made."""


def plain_count(count: Count | None, shift: float) -> Any:
    """`shift` is added to each time."""
    if count is None:
        return None
    occurred, recovered = count.history
    return [[at + shift for at in occurred], _moved(recovered, shift), count.often]


def plain_span(span: Span | None, shift: float) -> Any:
    if span is None:
        return None
    occurred, recovered = span.history
    return [_moved(occurred, shift), _moved(recovered, shift), span.long]


def read_count(raw: Any, shift: float) -> tuple[tuple[float, ...], float | None, bool] | None:
    """Raises Damaged."""
    if raw is None:
        return None
    match raw:
        case [[*times], recovered, bool(often)] if len(times) <= MOST_TIMES:
            return tuple(moment(at, shift) for at in times), _maybe(recovered, shift), often
    raise Damaged(f"not the history of a count: {str(raw)[:60]}")


def read_span(raw: Any, shift: float) -> tuple[float | None, float | None, bool] | None:
    """Raises Damaged."""
    if raw is None:
        return None
    match raw:
        case [occurred, recovered, bool(long)]:
            return _maybe(occurred, shift), _maybe(recovered, shift), long
    raise Damaged(f"not the history of a span: {str(raw)[:60]}")


def moment(raw: Any, shift: float) -> float:
    """Raises Damaged."""
    if type(raw) not in (int, float) or not -MOST <= raw <= MOST:  # nor a NaN
        raise Damaged(f"not a time: {str(raw)[:60]}")
    return float(raw) + shift


def _maybe(raw: Any, shift: float) -> float | None:
    return None if raw is None else moment(raw, shift)


def _moved(at: float | None, shift: float) -> float | None:
    return None if at is None else at + shift


def code_of(name: Any) -> int:
    """A code written as a number in decimal. Raises Damaged."""
    if not isinstance(name, str) or not name.isascii() or not name.isdigit() or len(name) > 25:
        raise Damaged(f"not a code: {str(name)[:60]}")
    return int(name)


def fields(raw: Any) -> tuple[str, Any, Any, Any]:
    """severity, since, count, span. Raises Damaged."""
    match raw:
        case {"severity": str(severity), "since": since, "count": count, "span": span}:
            return severity, since, count, span
    raise Damaged(f"not a code's history: {str(raw)[:60]}")


def plain_chip(chip: Chip) -> Any:
    known = {str(code): [fault.time, fault.minor] for code, fault in chip.codes.items()}
    return {"codes": known, "separated": chip.separated, "recovering": chip.recovering}


def read_chip(raw: Any, most: int) -> Chip:
    """Raises Damaged."""
    match raw:
        case {"codes": found, "separated": bool(separated), "recovering": bool(recovering)}:
            known = {code_of(name): _fault(value) for name, value in codes(found, most).items()}
            return Chip(known, separated, recovering)
    raise Damaged(f"not what device-info said of a device: {str(raw)[:60]}")


def _fault(raw: Any) -> Fault:
    match raw:
        case [int(time), bool(minor)] if type(time) is int and 0 <= time <= MOST_TIME:
            return Fault(time, minor)
    raise Damaged(f"not a fault: {str(raw)[:60]}")


def codes(raw: Any, most: int) -> Mapping[str, Any]:
    """Raises Damaged."""
    if not isinstance(raw, Mapping) or len(raw) > most:
        raise Damaged(f"not the codes of a device: {str(raw)[:60]}")
    return raw
