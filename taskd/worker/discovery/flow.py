"""What a piece of code does to variables, event by event, and which event may follow which."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field

from taskd.worker.discovery.variables import Key

NONE: frozenset[Key] = frozenset()


@dataclass
class Event:
    """`kills` are assigned for certain, `writes` perhaps, `own` by the event itself, in the code of
    the loop; `touches`: all that it names. `changes`: variables whose value is changed: by a method
    such as append(), or by `variable[key] = …`. Reads come first."""

    line: int
    statement: int
    reads: frozenset[Key] = NONE
    kills: frozenset[Key] = NONE
    writes: frozenset[Key] = NONE
    own: frozenset[Key] = NONE
    touches: frozenset[Key] = NONE
    changes: frozenset[Key] = NONE


@dataclass
class Loop:
    """`inside`: its events, from the head on, where each pass begins; `begins`: those of what a
    `for` goes through."""

    node: ast.stmt | ast.expr
    head: int
    inside: range
    begins: range


@dataclass
class Flow:
    events: list[Event] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    returns: set[int] = field(default_factory=set)
    loops: list[Loop] = field(default_factory=list)
    committed: set[int] = field(default_factory=set)  # reached where attempt.committed is true

    def before(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.after]
        for i, following in enumerate(self.after):
            for j in following:
                found[j].append(i)
        return found


def reach(start: Iterable[int], edges: list[list[int]], without: Iterable[int] = ()) -> set[int]:
    left = {*without}
    seen, todo = set[int](), [i for i in start if i not in left]
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += [j for j in edges[i] if j not in left]
    return seen
