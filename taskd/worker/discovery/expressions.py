"""The events of an expression, in the order in which Python evaluates it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from taskd.worker.discovery.flow import NONE, Event, Flow, Loop
from taskd.worker.discovery.syntax import COMPREHENSIONS, Function, Unknown
from taskd.worker.discovery.variables import Key, Scope
from taskd.worker.state.stored_attributes import MISSING

LARGEST = 60_000  # events of one function; 7 a line, 10 us each
# methods of lists, dicts, sets and deques
_CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop"),
    *("popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update"),
}


class Expressions:
    """`asks`: says what names mean, and what calls do (liveness.Analysis)."""

    def __init__(self, asks: Any, scope: Scope) -> None:
        self.flow = Flow()
        self._asks, self._scope = asks, scope
        self._ends: list[int] = []  # events that the next one follows
        self._line = self._statement = 0
        self._passed: set[Key] = set()  # assigned by functions that this statement passes on
        self._emit()

    # -- events ------------------------------------------------------------------------------------

    def _emit(self, **does: Any) -> int:
        i = len(self.flow.events)
        if i > LARGEST:
            raise Unknown("it is too long")
        self.flow.events.append(Event(self._line, self._statement, **does))
        self.flow.after.append([])
        self._follow(i)
        self._ends = [i]
        return i

    def _follow(self, i: int) -> None:
        for end in self._ends:
            self.flow.after[end].append(i)

    def _read(self, key: Key | None) -> None:
        if key is not None:
            one = frozenset([key])
            self._asks.noted(key, self._line, assigned=False)
            self._emit(reads=one, touches=one)

    def _assign(self, key: Key | None) -> None:
        if key is not None:
            one = frozenset([key])
            self._asks.noted(key, self._line, assigned=True)
            own = one if self._scope.in_loop else NONE
            self._emit(kills=one, writes=one, touches=one, own=own)

    def _change(self, key: Key | None) -> None:
        if key is not None:
            one = frozenset([key])
            self._emit(touches=one, changes=one)

    def _run(self, called: Any, certain: bool) -> None:
        """A function runs, or is passed on: then it has run at the end of the statement."""
        if called is None:
            return
        self._emit(reads=called.reads, writes=called.writes, touches=called.touches)
        if certain:
            self._emit(kills=called.kills)
        else:
            self._passed |= called.kills

    # -- expressions -------------------------------------------------------------------------------

    def _leaf(self, node: ast.expr | None) -> Any:
        """An expression, and then what the functions that it passes on assign. Returns its value,
        MISSING if that is not known."""
        if node is None:
            return MISSING
        before, self._passed = self._passed, set()
        found = self._load(node)
        if self._passed:
            self._emit(kills=frozenset(self._passed))
        self._passed = before
        return found

    def _load(self, node: ast.expr, calls: bool = False) -> Any:
        """`calls`: what it gives is called, so that it need not be followed here."""
        self._line = getattr(node, "lineno", self._line)
        if isinstance(node, ast.Name):
            found = self._name(node)
        elif isinstance(node, ast.Attribute):
            found = self._attribute(node)
        elif isinstance(node, ast.Call):
            return self._call(node)
        elif isinstance(node, ast.NamedExpr):
            self._load(node.value)
            self._store(node.target)
            return MISSING
        elif isinstance(node, ast.BoolOp):
            yes, no = self._test(node)
            self._ends = [*yes, *no]
            return MISSING
        elif isinstance(node, ast.IfExp):
            self._either(node.test, lambda: self._leaf(node.body), lambda: self._leaf(node.orelse))
            return MISSING
        elif isinstance(node, ast.Compare):
            self._compare(node)
            return MISSING
        elif isinstance(node, ast.Dict):
            for pair in zip(node.keys, node.values, strict=True):
                for one in pair:
                    if one is not None:
                        self._load(one)
            return MISSING
        elif isinstance(node, COMPREHENSIONS):
            self._comprehension(node)
            return MISSING
        elif isinstance(node, ast.Lambda):
            self._define(node)
            return MISSING
        else:
            self._inside(node)
            return MISSING
        if not calls:
            self._run(self._asks.called(found), certain=False)
        return found

    def _inside(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._load(child)
            else:  # a part of one: a keyword, an interpolation
                self._inside(child)

    def _name(self, node: ast.Name) -> Any:
        key = self._asks.key(self._scope, node.id)
        self._read(key)
        return self._asks.loaded(self._scope, node.id, key)

    def _attribute(self, node: ast.Attribute) -> Any:
        held = self._load(node.value, calls=True)
        self._line = node.lineno
        if held is MISSING or not self._asks.follows(held):
            return MISSING
        method, asked = self._asks.method(held, node.attr)
        if asked:
            self._run(self._asks.called(method), certain=True)
            return MISSING
        if method is not None:
            return method
        key = self._asks.attribute(held, node.attr)
        self._read(key)
        return self._asks.loaded(self._scope, node.attr, key)

    def _call(self, node: ast.Call) -> Any:
        function = self._load(node.func, calls=True)
        given: list[Any] = []
        named: dict[str, Any] = {}
        known = True  # by position
        for argument in node.args:
            value = self._load(argument)
            known = known and not isinstance(argument, ast.Starred)
            if known:
                given.append(value)
        for keyword in node.keywords:
            value = self._load(keyword.value)
            if keyword.arg:
                named[keyword.arg] = value
        self._line = node.lineno
        if isinstance(node.func, ast.Attribute) and node.func.attr in _CHANGING:
            self._change(self._asks.variable(self._scope, node.func.value))
        self._run(self._asks.called(function, given, named), certain=True)
        return MISSING

    def _compare(self, node: ast.Compare) -> None:
        """`a < b < c` ends where it is not true."""
        self._load(node.left)
        ends: list[int] = []
        for one in node.comparators:
            self._load(one)
            ends += self._ends
        self._ends = list(dict.fromkeys(ends))

    def _comprehension(self, node: Any) -> None:
        """Its passes; the variables are its own."""
        first, *others = node.generators
        self._load(first.iter)
        outer = self._scope
        begins = range(len(self.flow.events), len(self.flow.events))
        head = self._emit()
        self._scope = self._asks.comprehension(outer, node)
        skips: list[int] = []
        for i, generator in enumerate((first, *others)):
            if i:
                self._leaf(generator.iter)
            for condition in generator.ifs:
                self._ends, no = self._test(condition)
                skips += no
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        for one in made:
            self._leaf(one)
        self._ends = [*self._ends, *skips]
        self._follow(head)
        self.flow.loops.append(Loop(node, head, range(head, len(self.flow.events)), begins))
        self._scope, self._ends = outer, [head]

    def _define(self, node: Function) -> None:
        """A function is made: as if it ran, but what it assigns is not assigned for certain."""
        for default in (*node.args.defaults, *node.args.kw_defaults):
            self._leaf(default)
        made = self._asks.made(self._scope, node)
        self._emit(reads=made.reads, writes=made.writes, touches=made.touches)

    def _test(self, node: ast.expr) -> tuple[list[int], list[int]]:
        """Where it goes on if the expression is true, and if it is not."""
        if isinstance(node, ast.BoolOp):
            both, left = isinstance(node.op, ast.And), list[int]()
            go_on = self._ends
            for value in node.values:
                self._ends = go_on
                yes, no = self._test(value)
                go_on, leave = (yes, no) if both else (no, yes)
                left += leave
            return (go_on, left) if both else (left, go_on)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yes, no = self._test(node.operand)
            return no, yes
        self._leaf(node)
        yes, no = list(self._ends), list(self._ends)
        if isinstance(node, ast.Constant):
            return (yes, []) if node.value else ([], no)
        if isinstance(node, ast.Attribute) and node.attr == "committed":
            yes = [self._emit()]
            self.flow.committed.add(yes[0])
        return yes, no

    def _either(
        self, test: ast.expr, then: Callable[[], Any], otherwise: Callable[[], Any]
    ) -> None:
        self._ends, no = self._test(test)
        then()
        ends, self._ends = self._ends, no
        otherwise()
        self._ends = [*ends, *self._ends]

    # -- assignments -------------------------------------------------------------------------------

    def _store(self, target: ast.AST) -> None:
        self._line = getattr(target, "lineno", self._line)
        if isinstance(target, ast.Name):
            self._assign(self._asks.key(self._scope, target.id))
        elif isinstance(target, ast.Attribute):
            held = self._load(target.value, calls=True)
            if held is not MISSING and self._asks.follows(held):
                self._assign(self._asks.attribute(held, target.attr))
        elif isinstance(target, ast.Subscript):
            self._load(target.value)
            self._load(target.slice)
            self._change(self._asks.variable(self._scope, target.value))
        else:  # a tuple, a list, a starred one
            for inner in ast.iter_child_nodes(target):
                if isinstance(inner, ast.expr):
                    self._store(inner)

    def _bind(self, name: str | None) -> None:
        if name:
            self._assign(self._asks.key(self._scope, name))
