"""Shortens lists of ranks and nodes for messages.

A job has tens of thousands of them; a message that names them all is unreadable and takes seconds
to build and send (measured with 6,000)."""

from __future__ import annotations

from collections.abc import Iterable

FEW = 20


def abbreviate(items: Iterable[object], separator: str = ", ", few: int = FEW) -> str:
    """Return the first `few` of `items` and the number of the others."""
    listed = [str(item) for item in items]
    more = f" and {len(listed) - few} more" if len(listed) > few else ""
    return separator.join(listed[:few]) + more


def named(one: str, items: Iterable[object]) -> str:
    """The same after what they are, such as "rank 3" or "ranks 1, 3 and 20 more". `one`: what one
    of them is called."""
    listed = tuple(items)
    return f"{one}{'s' * (len(listed) != 1)} {abbreviate(listed)}"
