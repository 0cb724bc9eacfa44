"""Ranks and nodes in a sentence. A job has tens of thousands of them; a sentence that names them
all is read by nobody, and takes seconds to make and to send (measured with 6,000)."""

from __future__ import annotations

from collections.abc import Iterable

FEW = 20


def abbreviate(items: Iterable[object], separator: str = ", ", few: int = FEW) -> str:
    """The first `few` of `items`, and how many there are besides."""
    listed = [str(item) for item in items]
    more = f" and {len(listed) - few} more" if len(listed) > few else ""
    return separator.join(listed[:few]) + more
