"""Which variable a name in the script's code means, and what it holds."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from taskd.worker.discovery.stored_attributes import MISSING, value_of_attribute

# ("local", depth of the frame, name), ("global", id of the dict, name), ("cell", id, ""),
# ("attribute", id of the object, name)
Key = tuple[str, int, str]


@dataclass(frozen=True)
class Scope:
    """Where names of a code object lead. `locals_at`: number of the frame whose variables are
    looked at, -1 for a function that is only called; `named`: the dict of its LOAD_NAME; `cells`:
    by name; `outer`: of the code that makes this function; `bound`: local variables that are known
    objects."""

    code: types.CodeType
    named: dict[str, Any]
    globals: dict[str, Any]
    locals_at: int = -1
    variables: dict[str, Any] = field(default_factory=dict)
    cells: dict[str, types.CellType] = field(default_factory=dict)
    outer: Scope | None = None
    bound: dict[str, Any] = field(default_factory=dict)


class Variables:
    """`follows`: whether attributes of an object are looked at. `names`: how the script calls a
    variable; `objects`, `spaces`, `cells`: what the numbers in keys mean."""

    def __init__(self, follows: Callable[[Any], bool]) -> None:
        self._follows = follows
        self.names: dict[Key, str] = {}
        self.objects: dict[int, Any] = {}
        self.spaces: dict[int, dict[str, Any]] = {}
        self.cells: dict[int, types.CellType] = {}
        self._called_by: dict[int, str] = {}  # id of an object -> the script's name for it

    def _key(self, scope: Scope, kind: str, name: str) -> Key | None:
        if kind.endswith("_NAME"):
            return self._global(scope.named, name)
        if kind.endswith(("_GLOBAL", "_GLOBALS")):
            return self._global(scope.globals, name)
        if name in scope.cells:
            cell = scope.cells[name]
            self.cells[id(cell)] = cell
            key = ("cell", id(cell), "")
            self.names.setdefault(key, name)
            return key
        if scope.locals_at >= 0:
            key = ("local", scope.locals_at, name)
            self.names.setdefault(key, name)
            return key
        # a function that is made in the code of `outer`
        if scope.outer is not None and name in scope.code.co_freevars:
            return self._key(scope.outer, "LOAD_DEREF", name)
        return None

    def _global(self, space: dict[str, Any], name: str) -> Key | None:
        self.spaces[id(space)] = space
        key = ("global", id(space), name)
        module = space.get("__name__", "__main__")
        self.names.setdefault(key, name if module == "__main__" else f"{module}.{name}")
        return key

    def _attribute(self, holder: Any, name: str) -> Key:
        self.objects[id(holder)] = holder
        key = ("attribute", id(holder), name)
        self.names.setdefault(
            key, f"{self._called_by.get(id(holder), type(holder).__name__)}.{name}"
        )
        return key

    def _loaded(self, scope: Scope, kind: str, name: str, key: Key | None) -> Any:
        if key is None:
            value = scope.bound.get(name, MISSING)
        else:
            value = self.value(key, scope)
            if value is not MISSING and self._follows(value):
                self._called_by.setdefault(id(value), self.names[key])
        return value

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
