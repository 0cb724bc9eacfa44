"""Actions that another thread schedules for the training thread's next occasion: injected
faults."""

from __future__ import annotations

from collections.abc import Callable

Action = Callable[[], object]


class Trigger:
    """Runs each scheduled action once. `due`: those that are scheduled."""

    def __init__(self) -> None:
        self.due: list[Action] = []

    def add(self, action: Action) -> None:
        self.due.append(action)

    def fire(self) -> None:
        self.due, due = [], self.due
        for action in due:
            action()
