"""Which variable a name in the script's code means, and what it holds."""

from __future__ import annotations

import ast
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskd.worker.state.stored_attributes import MISSING, value_of_attribute

# ("local", depth of the frame, name), ("global", id of the dict, name), ("cell", id, ""),
# ("attribute", id of the object, name)
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Scope:
    """Where names of some code lead. `code`: the code object around it; `locals_at`: number of the
    frame whose variables are looked at, -1 for a function that is only called; `named`: where a
    module has its names; `cells`: by name; `bound`: local variables that are known objects.

    Of a function, a class or a comprehension inside: `outer`: the scope around it; `hidden`: the
    names that are its own; `declared`: those that it declares global."""

    code: types.CodeType
    named: dict[str, Any]
    globals: dict[str, Any]
    locals_at: int = -1
    variables: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, types.CellType] = field(default_factory=dict)
    bound: dict[str, Any] = field(default_factory=dict)
    outer: Scope | None = None
    hidden: frozenset[str] = frozenset()
    declared: frozenset[str] = frozenset()
    in_loop: bool = False  # it is the code of the loop itself
    is_class: bool = False  # whose names the functions in it do not see

    def inside(self, hidden: frozenset[str], **more: Any) -> Scope:
        return Scope(self.code, self.named, self.globals, outer=self, hidden=hidden, **more)


class Variables:
    """`follows`: whether attributes of an object are looked at. `names`: how the script calls a
    variable; `objects`, `spaces`, `cells`: what the numbers in keys mean."""

    def __init__(self, follows: Callable[[Any], bool]) -> None:
        self.follows = follows
        self.names: dict[Key, str] = {}
        self.objects: dict[int, Any] = {}
        self.spaces: dict[int, dict[str, Any]] = {}
        self.cells: dict[int, types.CellType] = {}
        self._called_by: dict[int, str] = {}  # id of an object -> the script's name for it

    def key(self, scope: Scope, name: str) -> Key | None:
        if scope.outer is not None:
            if name in scope.declared:
                return self._global(scope.globals, name)
            return None if name in scope.hidden else self.key(scope.outer, name)
        if name in scope.cells:
            cell = scope.cells[name]
            self.cells[id(cell)] = cell
            key = ("cell", id(cell), "")
            self.names.setdefault(key, name)
            return key
        code = scope.code
        if name in code.co_varnames or name in code.co_cellvars or name in code.co_freevars:
            if scope.locals_at < 0:
                return None
            key = ("local", scope.locals_at, name)
            self.names.setdefault(key, name)
            return key
        function = code.co_flags & inspect.CO_OPTIMIZED
        return self._global(scope.globals if function else scope.named, name)

    def _global(self, space: dict[str, Any], name: str) -> Key:
        self.spaces[id(space)] = space
        key = ("global", id(space), name)
        module = space.get("__name__", "__main__")
        self.names.setdefault(key, name if module == "__main__" else f"{module}.{name}")
        return key

    def attribute(self, holder: Any, name: str) -> Key:
        self.objects[id(holder)] = holder
        key = ("attribute", id(holder), name)
        self.names.setdefault(
            key, f"{self._called_by.get(id(holder), type(holder).__name__)}.{name}"
        )
        return key

    def loaded(self, scope: Scope, name: str, key: Key | None) -> Any:
        """What a name means: `key`, if it is a variable that outlives the code."""
        if key is None:
            return MISSING if scope.outer is not None else scope.bound.get(name, MISSING)
        value = self.value(key, scope)
        if value is not MISSING and self.follows(value):
            self._called_by.setdefault(id(value), self.names[key])
        return value

    def variable(self, scope: Scope, node: ast.expr) -> Key | None:
        """The variable, or the attribute of an object of the script, that an expression names."""
        if isinstance(node, ast.Name):
            return self.key(scope, node.id)
        if isinstance(node, ast.Attribute):
            key = self.variable(scope, node.value)
            name = node.value.id if isinstance(node.value, ast.Name) else ""
            held = self.value(key, scope) if key is not None else self.loaded(scope, name, None)
            if held is not MISSING and self.follows(held):
                return self.attribute(held, node.attr)
        return None

    def value(self, key: Key, scope: Scope) -> Any:
        """What a variable holds, MISSING if it is not bound."""
        kind, where, name = key
        if kind == "global":
            return self.spaces[where].get(name, MISSING)
        if kind == "cell":
            try:
                return self.cells[where].cell_contents
            except ValueError:
                return MISSING
        if kind == "attribute":
            return value_of_attribute(self.objects[where], name)
        at: Scope | None = scope
        while at is not None and at.locals_at != where:
            at = at.outer
        return at.variables.get(name, MISSING) if at is not None else MISSING
