"""Builds the records that a rank has kept after some steps, by the rules of the product."""

from __future__ import annotations

from taskd.core.job.snapshots import PROVISIONAL, SLOTS, Snapshots


def after_steps(step: int, *, committed: bool, striped: bool = True) -> Snapshots:
    """Return the records of a rank that has begun `step`, or `committed` it, with no change between
    steps."""
    kept = Snapshots()
    for number in range(max(step - SLOTS, 0), step + 1):
        kept.enter(number, same=True)
        if striped:
            kept.striped(number)
        if number < step or committed:
            kept.write(number + 1, PROVISIONAL)
    return kept
