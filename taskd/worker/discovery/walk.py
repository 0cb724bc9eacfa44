"""The events of a function, a module or a loop, from its syntax tree.

Exceptions are followed into `except`, not into the end of a `with`: an attempt that fails is over,
and what its body had not assigned yet is not read then.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from taskd.worker.discovery.expressions import Expressions
from taskd.worker.discovery.flow import Flow, Loop
from taskd.worker.discovery.syntax import Unknown
from taskd.worker.discovery.variables import Scope

_SIMPLE = (ast.Expr, ast.Pass, ast.Global, ast.Nonlocal)


@dataclass
class _Target:
    """Where `break` and `continue` lead."""

    head: int
    finals: int  # that are left by a jump
    breaks: list[int] = field(default_factory=list)


class Walk(Expressions):
    def __init__(self, asks: Any, scope: Scope) -> None:
        super().__init__(asks, scope)
        self._finals: list[list[ast.stmt]] = []
        self._targets: list[_Target] = []

    def all_of(self, node: ast.AST) -> Flow:
        """Of the body of a function or a module, or of a comprehension."""
        body = getattr(node, "body", node)
        if isinstance(body, list):
            self._block(body)
        elif isinstance(body, ast.expr):
            self._leaf(body)
        self.flow.returns.add(self._emit())
        return self.flow

    # -- statements --------------------------------------------------------------------------------

    def _block(self, body: Iterable[ast.stmt]) -> None:
        for node in body:
            self._statement += 1
            self._line = node.lineno
            how = getattr(self, f"_do_{type(node).__name__}", None)
            if how is not None:
                how(node)
            elif isinstance(node, _SIMPLE):
                self._leaf(getattr(node, "value", None))
            else:
                raise Unknown(f"a statement {type(node).__name__} is not known")

    def _do_Assign(self, node: ast.Assign) -> None:
        self._leaf(node.value)
        for target in node.targets:
            self._store(target)

    def _do_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._leaf(node.value)
            self._store(node.target)

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        self._load(node.target)
        self._leaf(node.value)
        self._store(node.target)

    def _do_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self._store(target)

    def _do_TypeAlias(self, node: Any) -> None:
        self._store(node.name)

    def _do_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for row in node.names:
            self._bind(row.asname or row.name.partition(".")[0])

    _do_ImportFrom = _do_Import

    def _do_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self._leaf(decorator)
        self._define(node)
        self._bind(node.name)

    _do_AsyncFunctionDef = _do_FunctionDef

    def _do_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *(k.value for k in node.keywords)):
            self._leaf(part)
        outer, self._scope = self._scope, self._asks.body(self._scope, node)
        self._block(node.body)
        self._scope = outer
        self._bind(node.name)

    def _do_Return(self, node: ast.Return) -> None:
        self._leaf(node.value)
        self._leave(0)
        self.flow.returns.add(self._emit())
        self._ends = []

    def _do_Raise(self, node: ast.Raise) -> None:
        self._leaf(node.exc)
        self._leaf(node.cause)
        self._ends = []

    def _do_Assert(self, node: ast.Assert) -> None:
        yes, self._ends = self._test(node.test)
        self._leaf(node.msg)
        self._ends = yes

    def _do_If(self, node: ast.If) -> None:
        self._either(node.test, lambda: self._block(node.body), lambda: self._block(node.orelse))

    def _do_Match(self, node: ast.Match) -> None:
        self._leaf(node.subject)
        ends: list[int] = []
        for case in node.cases:
            compared = [x for x in ast.walk(case.pattern) if isinstance(x, ast.expr)]
            for one in compared:
                if isinstance(one, (ast.Attribute, ast.Name)):
                    self._load(one)
            pattern = case.pattern
            always = isinstance(pattern, ast.MatchAs) and pattern.pattern is None
            no = [] if always else list(self._ends)
            for part in ast.walk(pattern):
                self._bind(getattr(part, "name", None) or getattr(part, "rest", None))
            if case.guard is not None:
                self._ends, otherwise = self._test(case.guard)
                no += otherwise
            self._block(case.body)
            ends += self._ends
            self._ends = no
        self._ends = [*ends, *self._ends]

    def _do_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self._leaf(item.context_expr)
            if item.optional_vars is not None:
                self._store(item.optional_vars)
        self._block(node.body)

    _do_AsyncWith = _do_With

    # -- loops and exceptions ----------------------------------------------------------------------

    def _do_For(self, node: ast.For | ast.AsyncFor) -> None:
        first = len(self.flow.events)
        self._leaf(node.iter)
        begins = range(first, len(self.flow.events))
        head = self._emit()
        target = _Target(head, len(self._finals))
        self._targets.append(target)
        self._store(node.target)
        self._pass(node, target, begins)
        self._ends = [head]
        self._block(node.orelse)
        self._ends = [*self._ends, *target.breaks]

    _do_AsyncFor = _do_For

    def _do_While(self, node: ast.While) -> None:
        head = self._emit()
        target = _Target(head, len(self._finals))
        self._targets.append(target)
        self._ends, no = self._test(node.test)
        self._pass(node, target, range(head, head))
        self._ends = no
        self._block(node.orelse)
        self._ends = [*self._ends, *target.breaks]

    def _pass(self, node: Any, target: _Target, begins: range) -> None:
        self._block(node.body)
        self._follow(target.head)
        self._targets.pop()
        inside = range(target.head, len(self.flow.events))
        self.flow.loops.append(Loop(node, target.head, inside, begins))

    def _do_Break(self, _: ast.Break) -> None:
        target = self._targets[-1]
        self._leave(target.finals)
        target.breaks += self._ends
        self._ends = []

    def _do_Continue(self, _: ast.Continue) -> None:
        target = self._targets[-1]
        self._leave(target.finals)
        self._follow(target.head)
        self._ends = []

    def _leave(self, until: int) -> None:
        """What `finally` does on a way out of it."""
        kept, targets = self._finals, self._targets
        while len(self._finals) > until:
            body = self._finals[-1]
            self._finals = self._finals[:-1]
            self._block(body)
        self._finals, self._targets = kept, targets

    def _do_Try(self, node: ast.Try) -> None:
        if node.finalbody:
            self._finals.append(node.finalbody)
        first = self._emit()
        self._block(node.body)
        raising = range(first, len(self.flow.events))
        self._block(node.orelse)
        ends, self._ends = self._ends, []
        if node.handlers:
            self._caught(raising)
        for handler in node.handlers:
            no: list[int] = []
            if handler.type is not None:
                self._leaf(handler.type)
                no = list(self._ends)
            self._bind(handler.name)
            self._block(handler.body)
            if handler.name and self._ends:
                self._bind(handler.name)  # it is deleted
            ends, self._ends = [*ends, *self._ends], no
        if node.finalbody:
            self._finals.pop()
            self._ends = []
            self._caught(range(first, len(self.flow.events)))
            self._block(node.finalbody)  # and the exception goes on
            self._ends = ends
            self._block(node.finalbody)
        else:
            self._ends = ends

    _do_TryStar = _do_Try

    def _caught(self, raising: range) -> None:
        """Each of these events may be followed by what comes now."""
        self._ends = list(raising)
        self._emit()
