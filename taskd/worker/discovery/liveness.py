"""What a loop carries from one pass through its body to the next, from its source.

A variable is carried if the body may read it before it assigns it, and assigns it somewhere: it is
live at the loop's head. Variables are those of the loop's own code, globals, closure cells, and
attributes of the script's objects; functions of the script that the body calls are looked into.
Nothing of the script runs.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from taskd.worker.discovery import syntax
from taskd.worker.discovery.flow import Flow, reach
from taskd.worker.discovery.syntax import Function, Unknown
from taskd.worker.discovery.variables import Key, Scope, Variables
from taskd.worker.discovery.walk import Walk
from taskd.worker.state.stored_attributes import MISSING, method_of

FUNCTIONS = 500  # that are looked into


@dataclass(frozen=True)
class Summary:
    """What a call of a function does: `reads`: what it may read before it assigns it; `touches`:
    all that it names."""

    reads: frozenset[Key] = frozenset()
    kills: frozenset[Key] = frozenset()
    writes: frozenset[Key] = frozenset()
    touches: frozenset[Key] = frozenset()


class Analysis(Variables):
    """`own`: whether code with these globals is the script's; `meter`: whether the methods of this
    object are looked into as well. `direct`: what the loops' own code assigns; `ranges`: what `for`
    loops read to begin; `once`: what changes only where `attempt.committed` is true. `lines`: where
    a variable is assigned, or read. `loop`: file and line of the innermost loop."""

    def __init__(
        self,
        own: Callable[[dict[str, Any]], bool],
        follows: Callable[[Any], bool],
        meter: Callable[[Any], bool] = lambda value: False,
    ) -> None:
        super().__init__(follows)
        self._own, self._meter = own, meter
        self.direct: set[Key] = set()
        self.ranges: set[Key] = set()
        self.once: set[Key] = set()
        self.lines: dict[Key, int] = {}
        self.loop: tuple[str, int] | None = None
        self._summaries: dict[Any, Summary] = {}
        self._kept: list[Any] = []  # ids in the keys of summaries stay theirs
        self._assigned: set[Key] = set()  # those whose line is that of an assignment

    def carried(self, scope: Scope, line: int, begins: bool) -> tuple[set[Key], set[Key]]:
        """(what the loops around this line carry, what else they name and do not assign first).
        `begins`: whether a `for` in this line is sure to ask for its next pass; it is taken to do
        so as long as no loop inside has been found. Raises Unknown."""
        carried, touched = set[Key](), set[Key]()
        node = syntax.of(scope.code, scope.globals)
        if not has_loops(node):
            return carried, touched
        flow = self._walk(scope, node)
        begins = begins or self.loop is None
        around = [loop for loop in flow.loops if _is_around(loop.node, line, begins)]
        if around and self.loop is None:
            self.loop = scope.code.co_filename, max(loop.node.lineno for loop in around)
        before, from_start = flow.before(), reach([0], flow.after)
        for loop in around:
            ends = [i for i in before[loop.head] if i in loop.inside and i in from_start]
            body = (reach(ends, before, [loop.head]) | {loop.head}) & from_start
            live = self._live(flow, body)[loop.head]
            written = {key for i in body for key in flow.events[i].writes}
            carried |= live & written
            self.direct |= {key for i in body for key in flow.events[i].own}
            begun = {key for i in loop.begins for key in flow.events[i].reads}
            self.ranges = (self.ranges | begun) - written
            self._look_at_commits(flow, body - reach([loop.head], flow.after, flow.committed))
            # where the loop assigns it first, or else names it first
            for i in sorted(body, reverse=True):
                event = flow.events[i]
                touched |= event.touches - (written - live)
                for key in (event.touches - written) | event.kills:
                    self.lines[key] = event.line
        return carried, touched

    def _look_at_commits(self, flow: Flow, once: set[int]) -> None:
        """Find what changes where a step is committed, in events that run only there."""
        read: dict[int, set[Key]] = {}
        for i in once:
            read.setdefault(flow.events[i].statement, set()).update(flow.events[i].reads)
        for i in once:
            event = flow.events[i]
            # from what it was: a time stamp may as well be an older one
            self.once |= event.changes | (event.writes & read[event.statement])

    def reads_of(self, function: Any) -> frozenset[Key]:
        """The variables outliving a call of `function` that it may read before it assigns them."""
        called = self.called(function)
        return called.reads if called is not None else frozenset()

    # -- dataflow ----------------------------------------------------------------------------------

    def _live(self, flow: Flow, inside: set[int]) -> dict[int, set[Key]]:
        """What may be read from each event on, before it is assigned, without leaving `inside`."""
        live: dict[int, set[Key]] = {i: set() for i in inside}
        order = sorted(inside, reverse=True)
        changed = True
        while changed:
            changed = False
            for i in order:
                now: set[Key] = set()
                for j in flow.after[i]:
                    now |= live.get(j, set())
                now = (now - flow.events[i].kills) | flow.events[i].reads
                if now != live[i]:
                    live[i], changed = now, True
        return live

    def _certain(self, flow: Flow, inside: set[int]) -> set[Key]:
        """What is assigned on every way to a return."""
        everything = {key for i in inside for key in flow.events[i].kills}
        known: dict[int, set[Key]] = {i: set(everything) for i in inside}
        order = sorted(inside, reverse=True)
        changed = bool(everything)
        while changed:
            changed = False
            for i in order:
                following = [known[j] for j in flow.after[i] if j in known]
                ends = i in flow.returns or not following
                rest = set[Key]() if ends else set.intersection(*following)
                now = rest | flow.events[i].kills
                if now != known[i]:
                    known[i], changed = now, True
        return known.get(0, set())

    def _summary(self, scope: Scope, node: ast.AST) -> Summary:
        """The effect of a call of this function on variables that outlive it."""
        which = (
            id(node),
            tuple(id(cell) for cell in scope.cells.values()),
            tuple((name, id(value)) for name, value in scope.bound.items()),
            id(scope.outer),
        )
        if which in self._summaries:
            return self._summaries[which]
        if len(self._summaries) >= FUNCTIONS:
            raise Unknown("it calls too many functions")
        self._summaries[which] = Summary()  # of a function that calls itself
        self._kept.append((scope, node))
        flow = self._walk(scope, node)
        inside = reach(flow.returns, flow.before()) & reach([0], flow.after)
        events = [flow.events[i] for i in inside]
        self._summaries[which] = made = Summary(
            frozenset(self._live(flow, inside).get(0, set())),
            frozenset(self._certain(flow, inside)),
            frozenset(key for event in events for key in event.writes),
            frozenset(key for event in events for key in event.touches),
        )
        return made

    def _walk(self, scope: Scope, node: ast.AST) -> Flow:
        try:
            return Walk(self, scope).all_of(node)
        except RecursionError:
            raise Unknown("it is nested too deeply") from None

    # -- what a walk asks --------------------------------------------------------------------------

    def noted(self, key: Key, line: int, assigned: bool) -> None:
        """The line of the first assignment, rather than of a read."""
        if not assigned:
            self.lines.setdefault(key, line)
        elif key not in self._assigned:
            self._assigned.add(key)
            self.lines[key] = line

    def method(self, holder: Any, name: str) -> tuple[types.MethodType | None, bool]:
        """A method of an object, or the function of a property, and whether it is one."""
        found, asked = method_of(holder, name)
        return (types.MethodType(found, holder) if found is not None else None), asked

    def called(
        self, value: Any, given: Sequence[Any] = (), named: Mapping[str, Any] | None = None
    ) -> Summary | None:
        """What a call of `value` does, if it is a function of the script. `given`, `named`: the
        arguments, MISSING for those that are not known."""
        first: list[Any] = []
        if not _is_function(value) and value is not MISSING:
            value, _ = self.method(value, "__call__")
        if type(value) is types.MethodType:
            first, value = [value.__self__], value.__func__
        if type(value) is not types.FunctionType:
            return None
        if not self._own(value.__globals__) and not (first and self._meter(first[0])):
            return None
        code = value.__code__
        if not syntax.has_source(code, value.__globals__):  # made by a library: dataclasses
            return None
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        bound = dict(zip(names[: code.co_argcount], first, strict=False))
        # each way of calling a function is analyzed separately: not too many
        if len(self._summaries) < FUNCTIONS // 2:
            positions = zip(names[len(first) : code.co_argcount], given, strict=False)
            for name, held in (*positions, *(named or {}).items()):
                known = held is not MISSING and name in names
                if known and (self.follows(held) or _is_function(held)):
                    bound[name] = held
        cells = dict(zip(code.co_freevars, value.__closure__ or (), strict=False))
        space = value.__globals__
        made: list[Summary] = []
        for node in syntax.all_of(code, space):
            assigned = syntax.names(node).assigned
            held = {name: value for name, value in bound.items() if name not in assigned}
            self._kept.append(held)
            made.append(self._summary(Scope(code, space, space, cells=cells, bound=held), node))
        return _any_of(made)

    def made(self, scope: Scope, node: Function) -> Summary:
        """What a call of a function that is made here does."""
        while scope.is_class and scope.outer is not None:
            scope = scope.outer
        said = syntax.names(node)
        own = (said.assigned | {*syntax.parameters(node)}) - said.globals
        return self._summary(scope.inside(own, declared=said.globals), node)

    def comprehension(self, scope: Scope, node: ast.AST) -> Scope:
        return scope.inside(syntax.targets(node), in_loop=scope.in_loop)

    def body(self, scope: Scope, node: ast.ClassDef) -> Scope:
        said = syntax.names(node)
        return scope.inside(said.assigned, declared=said.globals, is_class=True)


def _any_of(made: list[Summary]) -> Summary | None:
    if len(made) < 2:
        return made[0] if made else None
    return Summary(
        frozenset().union(*(one.reads for one in made)),
        made[0].kills.intersection(*(one.kills for one in made)),
        frozenset().union(*(one.writes for one in made)),
        frozenset().union(*(one.touches for one in made)),
    )


def has_loops(node: ast.AST) -> bool:
    loops = (ast.For, ast.AsyncFor, ast.While, *syntax.COMPREHENSIONS)
    return any(isinstance(one, loops) for one in ast.walk(node))


def _is_around(loop: Any, line: int, begins: bool) -> bool:
    """Whether a loop is under way where this line runs."""
    if isinstance(loop, (ast.For, ast.AsyncFor)):
        head = loop.lineno <= line < loop.body[0].lineno
        body = loop.body[0].lineno <= line <= (loop.body[-1].end_lineno or line)
        return (head and begins) or body
    last = loop.body[-1] if isinstance(loop, ast.While) else loop
    return bool(loop.lineno <= line <= (last.end_lineno or line))


def _is_function(value: Any) -> bool:
    return type(value) in (types.FunctionType, types.MethodType)


def rehearse() -> None:
    """Called by the zygote to warm up: Python specializes code as it runs, and forks inherit
    that."""
    code = Analysis.carried.__code__
    space = Analysis.carried.__globals__
    analysis = Analysis(lambda space: False, lambda value: False)
    analysis.carried(Scope(code, {}, space, 0), code.co_firstlineno + 20, False)
    syntax.forget()
