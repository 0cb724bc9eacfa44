"""One way to deliver a notice."""

from __future__ import annotations

from typing import Protocol


class Failed(Exception):
    """A notice could not be delivered. `again`: a second try may have more success."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


class Delivery(Protocol):
    @property
    def name(self) -> str:
        """For the log; says nothing secret."""

    def deliver(self, payload: bytes, seconds: float) -> None:
        """Deliver it within that time. Raises Failed."""

    def abandon(self) -> None:
        """Have a delivery that is under way fail at once. Called in another thread."""
