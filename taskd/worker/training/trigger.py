"""Actions that another thread schedules for the training thread's next occasion: injected
faults."""

from __future__ import annotations

from collections.abc import Callable

Action = Callable[[], object]


class Trigger:
    """Runs each scheduled action once."""

    def __init__(self) -> None:
        self._due: list[Action] = []

    def add(self, action: Action) -> None:
        self._due.append(action)

    def fire(self) -> None:
        if self._due:
            self._due, due = [], self._due
            for action in due:
                action()
