"""What a loop carries from one pass through its body to the next, from its bytecode.

A variable is carried if the body may read it before it assigns it, and assigns it somewhere: it is
live at the loop's head. Variables are those of the loop's own code, globals, closure cells, and
attributes of the script's objects; functions of the script that the body calls are looked into.
Nothing of the script runs.

Exceptions are followed into `except`, not into the end of a `with`: an attempt that fails is over,
and what its body had not assigned yet is not read then.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskd.worker.discovery import bytecode
from taskd.worker.discovery.bytecode import COPIES, LOADS, RETURNS, SWAPS, Flow
from taskd.worker.discovery.stored_attributes import MISSING, method_of, value_of_attribute
from taskd.worker.discovery.variables import Key, Scope, Variables

FUNCTIONS = 500  # that are looked into


@dataclass
class Effect:
    """What an instruction does to variables: `kills` are assigned for certain, `writes` perhaps,
    `own` by the instruction itself, in the code of the loop."""

    reads: set[Key] = field(default_factory=set)
    kills: set[Key] = field(default_factory=set)
    writes: set[Key] = field(default_factory=set)
    own: set[Key] = field(default_factory=set)


@dataclass(frozen=True)
class Summary:
    """What a call of a function does: `reads`: what it may read before it assigns it; `touches`:
    all that it names."""

    reads: frozenset[Key] = frozenset()
    kills: frozenset[Key] = frozenset()
    writes: frozenset[Key] = frozenset()
    touches: frozenset[Key] = frozenset()


class Analysis(Variables):
    """`own`: whether code with these globals is the script's. `direct`: what the loops' own code
    assigns; `ranges`: what `for` loops read to begin; `once`: what changes only where
    `attempt.committed` is true. `lines`: where a variable is assigned, or read."""

    def __init__(
        self, own: Callable[[dict[str, Any]], bool], follows: Callable[[Any], bool]
    ) -> None:
        super().__init__(follows)
        self._own = own
        self.direct: set[Key] = set()
        self.ranges: set[Key] = set()
        self.once: set[Key] = set()
        self.lines: dict[Key, int] = {}
        self._summaries: dict[Any, Summary] = {}
        self._kept: list[Any] = []  # ids in the keys of summaries stay theirs
        self._assigned: set[Key] = set()  # those whose line is that of an assignment

    def carried(self, scope: Scope, offset: int) -> tuple[set[Key], set[Key]]:
        """(what the loops around this instruction carry, what else they name and do not assign
        first). Raises Unknown."""
        carried, touched = set[Key](), set[Key]()
        if not bytecode.has_loops(scope.code):
            return carried, touched
        found = bytecode.flow(scope.code)
        # a call may point behind its instruction, into its inline cache
        at = max(i for i, one in enumerate(found.instructions) if one.offset <= offset)
        if not (around := bytecode.loops(found, at)):
            return carried, touched
        starts = {head: bytecode.beginning(found, head) for head, _ in around}
        inside = {i for head, body in around for i in (*body, *starts[head])}
        effects, touches = self._effects(scope, found, inside)
        for head, body in around:
            live = self._live(found, effects, body)[head]
            written = {key for i in body for key in effects[i].writes}
            carried |= live & written
            self.direct |= {key for i in body for key in effects[i].own}
            begins = {key for i in starts[head] for key in effects[i].reads}
            self.ranges = (self.ranges | begins) - written
            once = bytecode.only_where(found, head, body, "committed")
            for i in once:
                name = bytecode.changed(found, i)
                self.once |= {k for k in touches[i] if name in (k[2], self.names[k])}
                # from what it was: a time stamp may as well be an older one
                line = [effects[j].reads for j in once if found.lines[j] == found.lines[i]]
                self.once |= effects[i].writes.intersection(set().union(*line))
            # where the loop assigns it first, or else names it first
            for i in sorted(body, reverse=True):
                touched |= touches[i] - (written - live)
                for key in touches[i] - written:
                    self.lines[key] = found.lines[i]
                for key in effects[i].kills:
                    self.lines[key] = found.lines[i]
        return carried, touched

    def reads_of(self, function: Any) -> frozenset[Key]:
        """The variables outliving a call of `function` that it may read before it assigns them."""
        called = self._called(function)
        return called.reads if called is not None else frozenset()

    # -- dataflow ----------------------------------------------------------------------------------

    def _live(self, found: Flow, effects: list[Effect], inside: set[int]) -> dict[int, set[Key]]:
        """What may be read from each instruction on, before it is assigned, without leaving
        `inside`."""
        live: dict[int, set[Key]] = {i: set() for i in inside}
        order = sorted(inside, reverse=True)
        changed = True
        while changed:
            changed = False
            for i in order:
                now: set[Key] = set()
                for j in found.after[i]:
                    now |= live.get(j, set())
                now = effects[i].reads | (now - effects[i].kills)
                if now != live[i]:
                    live[i], changed = now, True
        return live

    def _certain(self, found: Flow, effects: list[Effect], inside: set[int]) -> set[Key]:
        """What is assigned on every way to a return."""
        everything = {key for i in inside for key in effects[i].kills}
        known: dict[int, set[Key]] = {i: set(everything) for i in inside}
        order = sorted(inside, reverse=True)
        changed = bool(everything)
        while changed:
            changed = False
            for i in order:
                following = [known[j] for j in found.after[i] if j in known]
                rest = (
                    set()
                    if found.instructions[i].opname in RETURNS or not following
                    else set.intersection(*following)
                )
                now = effects[i].kills | rest
                if now != known[i]:
                    known[i], changed = now, True
        return known.get(0, set())

    def summary(self, scope: Scope) -> Summary:
        """The effect of a call of this function on variables that outlive it."""
        which = (
            id(scope.code),
            tuple(id(cell) for cell in scope.cells.values()),
            tuple((name, id(value)) for name, value in scope.bound.items()),
            id(scope.outer),
        )
        if which in self._summaries:
            return self._summaries[which]
        if len(self._summaries) >= FUNCTIONS:
            raise bytecode.Unknown("it calls too many functions")
        self._summaries[which] = Summary()  # of a function that calls itself
        self._kept.append(scope)
        found = bytecode.flow(scope.code)
        before: list[list[int]] = [[] for _ in found.after]
        for i, following in enumerate(found.after):
            for j in following:
                before[j].append(i)
        returns = [i for i, one in enumerate(found.instructions) if one.opname in RETURNS]
        inside = bytecode.reach(returns, before, -1) & bytecode.reach([0], found.after, -1)
        effects, touches = self._effects(scope, found, inside)
        self._summaries[which] = made = Summary(
            frozenset(self._live(found, effects, inside).get(0, set())),
            frozenset(self._certain(found, effects, inside)),
            frozenset(key for i in inside for key in effects[i].writes),
            frozenset(key for i in inside for key in touches[i]),
        )
        return made

    # -- instructions ------------------------------------------------------------------------------

    def _effects(
        self, scope: Scope, found: Flow, inside: set[int]
    ) -> tuple[list[Effect], list[set[Key]]]:
        """What each instruction does, and what it names; nothing for those not `inside`."""
        effects: list[Effect] = []
        touches: list[set[Key]] = []
        hidden = bytecode.comprehensions(found)
        top: Any = MISSING  # the object that was loaded last
        copied: Any = MISSING  # of `self.x += 1`, until it is stored
        after_call: set[Key] = set()  # assigned by a function that is about to be called
        for i, one in enumerate(found.instructions):
            effect, touched = Effect(), set[Key]()
            effects.append(effect)
            touches.append(touched)
            if i in found.joins or i not in inside:
                top, after_call = MISSING, set()
            if i not in inside:
                continue
            name = one.opname
            if after_call and (name == "POP_TOP" or name.startswith(("STORE", "RETURN", "POP_JU"))):
                effect.kills |= after_call
                after_call = set()
            line = found.lines[i]
            steps = bytecode.named(one)
            for kind, variable in steps:
                key = (
                    None
                    if bytecode.is_hidden(hidden, variable, one)
                    else self._key(scope, kind, variable)
                )
                if kind in LOADS:
                    top = self._loaded(scope, kind, variable, key)
                    if key is not None:
                        touched.add(key)
                        if key not in effect.kills:
                            effect.reads.add(key)
                        self.lines.setdefault(key, line)
                    called = self._called(top, scope, found, i)
                elif key is not None:
                    top, called = MISSING, None
                    effect.kills.add(key)
                    effect.writes.add(key)
                    touched.add(key)
                    self._noted(key, line)
                    if scope.locals_at >= 0:
                        effect.own.add(key)
                else:
                    top, called = MISSING, None
                if called is not None:
                    after_call |= self._add_call(called, effect, touched)
            if steps:
                continue
            if name in ("LOAD_ATTR", "LOAD_METHOD"):
                held, top = top, MISSING
                if held is MISSING or not self._follows(held):
                    continue
                method = method_of(held, one.argval)
                if method is not None:
                    called = self._called(types.MethodType(method, held), scope, found, i)
                    if called is not None:
                        after_call |= self._add_call(called, effect, touched)
                    continue
                key = self._attribute(held, one.argval)
                touched.add(key)
                effect.reads.add(key)
                self.lines.setdefault(key, line)
                top = value_of_attribute(held, one.argval)
                continue
            if name in ("STORE_ATTR", "DELETE_ATTR"):
                held, top = top, MISSING
                if held is not MISSING and self._follows(held):
                    key = self._attribute(held, one.argval)
                    effect.kills.add(key)
                    effect.writes.add(key)
                    touched.add(key)
                    self._noted(key, line)
                    if scope.locals_at >= 0:
                        effect.own.add(key)
                continue
            if name in COPIES:
                copied = top
            elif name in SWAPS:
                top, copied = copied, MISSING
            elif name == "LOAD_CONST" and isinstance(one.argval, types.CodeType):
                inner = Scope(
                    one.argval, scope.globals, scope.globals, outer=scope, cells=scope.cells
                )
                self._add_call(self.summary(inner), effect, touched)
                top = MISSING
            elif name not in ("PUSH_NULL", "EXTENDED_ARG", "CACHE", "NOP"):
                top = MISSING
        return effects, touches

    def _add_call(self, called: Summary, effect: Effect, touched: set[Key]) -> set[Key]:
        """Add what a call does; returns what it assigns for certain, which is so when its arguments
        have been read."""
        effect.reads |= called.reads
        effect.writes |= called.writes
        touched |= called.touches
        return set(called.kills)

    def _noted(self, key: Key, line: int) -> None:
        """The line of the first assignment, rather than of a read."""
        if key not in self._assigned:
            self._assigned.add(key)
            self.lines[key] = line

    # -- calls -------------------------------------------------------------------------------------

    def _called(
        self, value: Any, scope: Scope | None = None, found: Flow | None = None, at: int = 0
    ) -> Summary | None:
        """What a call of `value` does, if it is a function of the script. `at`: the instruction in
        `scope` that loads it, for a call that follows."""
        first: list[Any] = []
        if type(value) is types.MethodType:
            first, value = [value.__self__], value.__func__
        if type(value) is not types.FunctionType or not self._own(value.__globals__):
            return None
        code = value.__code__
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        bound = dict(zip(names[: code.co_argcount], first, strict=False))
        # each way of calling a function is analyzed separately: not too many
        if scope is not None and found is not None and len(self._summaries) < FUNCTIONS // 2:
            given, named = bytecode.arguments(found, at)
            positions = zip(names[len(first) : code.co_argcount], given, strict=False)
            for name, load in (*positions, *named.items()):
                if load is not None and name in names:
                    held = self._loaded(scope, *load, self._key(scope, *load))
                    if held is not MISSING and (self._follows(held) or _is_function(held)):
                        bound[name] = held
        for name in bytecode.assigned(code) & bound.keys():
            del bound[name]
        self._kept.append(bound)
        cells = dict(zip(code.co_freevars, value.__closure__ or (), strict=False))
        return self.summary(
            Scope(code, value.__globals__, value.__globals__, cells=cells, bound=bound)
        )


def _is_function(value: Any) -> bool:
    return type(value) in (types.FunctionType, types.MethodType)
