"""Things to do in the training thread at the next occasion, asked for by another one: faults on
purpose."""

from __future__ import annotations

from collections.abc import Callable

Action = Callable[[], object]


class Trigger:
    """Each action is done once."""

    def __init__(self) -> None:
        self._due: list[Action] = []

    def add(self, action: Action) -> None:
        self._due.append(action)

    def fire(self) -> None:
        if self._due:
            self._due, due = [], self._due
            for action in due:
                action()
