"""The syntax tree of a code object, from the source that its tracebacks show: the one that was
loaded, also where the file has been edited since (set_up/sources.py)."""

from __future__ import annotations

import ast
import inspect
import linecache
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# before Python 3.12 these have code objects of their own
_ANONYMOUS: dict[str, type[ast.AST]] = {
    "<lambda>": ast.Lambda,
    "<listcomp>": ast.ListComp,
    "<setcomp>": ast.SetComp,
    "<dictcomp>": ast.DictComp,
    "<genexpr>": ast.GeneratorExp,
}
_ARGUMENTS = (inspect.CO_VARARGS, inspect.CO_VARKEYWORDS)
_found: dict[tuple[str, types.CodeType], list[ast.AST]] = {}
_trees: dict[str, ast.Module] = {}
_prepared: dict[str, tuple[str, ast.Module]] = {}  # file -> its text then, and the tree


class Unknown(Exception):
    """This code cannot be analyzed; the text says why."""


def of(code: types.CodeType, space: dict[str, Any]) -> ast.AST:
    """The definition of a function, or a module. `space`: its globals. Raises Unknown."""
    found = all_of(code, space)
    if len(found) != 1:
        where = f"line {code.co_firstlineno} of {code.co_filename}"
        raise Unknown(f"{where} does not say which of {len(found)} is {code.co_name}")
    return found[0]


def all_of(code: types.CodeType, space: dict[str, Any]) -> list[ast.AST]:
    """The definitions that may be meant: of several lambdas in a line, those with these arguments.
    Raises Unknown."""
    which = code.co_filename, code  # equal code may be of another file
    if which not in _found:
        tree = _tree(code, space)
        fitting: list[ast.AST] = [tree]
        if code.co_name != "<module>":
            fitting = [node for node in _beginning(tree, code) if _fits(node, code)]
        _found[which] = fitting
    return _found[which]


def has_source(code: types.CodeType, space: dict[str, Any]) -> bool:
    return bool(linecache.getlines(code.co_filename, space))


def is_stub(code: types.CodeType, space: dict[str, Any]) -> bool:
    """Whether it only runs a program: of `python -c`, of a pool of processes."""
    return code.co_name == "<module>" and not has_source(code, space)


def prepare(file: str, text: str) -> ast.Module:
    """Read the source of a file that forks of this process will ask for. Raises SyntaxError and
    ValueError."""
    _prepared[file] = text, ast.parse(text, file)
    return _prepared[file][1]


def forget() -> None:
    """Free the trees of whole files; those of what was asked for stay."""
    _trees.clear()
    _prepared.clear()


def _tree(code: types.CodeType, space: dict[str, Any]) -> ast.Module:
    file = code.co_filename
    if file not in _trees:
        if not (lines := linecache.getlines(file, space)):
            raise Unknown(f"there is no source of {code.co_name}, of {file}")
        text = "".join(lines)
        known, tree = _prepared.get(file, ("", None))
        try:
            _trees[file] = tree if tree is not None and known == text else ast.parse(text)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise Unknown(
                f"the source of {code.co_name}, {file}, cannot be read: {error}"
            ) from None
    return _trees[file]


def _beginning(inside: ast.AST, code: types.CodeType) -> Iterator[ast.AST]:
    """The definitions in a tree that have this name, and begin in this line."""
    line, name = code.co_firstlineno, code.co_name
    for node in ast.iter_child_nodes(inside):
        decorators = getattr(node, "decorator_list", [])
        first = min((d.lineno for d in decorators), default=getattr(node, "lineno", line))
        if not first <= line <= (getattr(node, "end_lineno", line) or line):
            continue
        kind = _ANONYMOUS.get(name)
        named = type(node) is kind if kind else getattr(node, "name", None) == name
        if named and first == line and isinstance(node, (*FUNCTIONS, *COMPREHENSIONS)):
            yield node
        yield from _beginning(node, code)


def _fits(node: ast.AST, code: types.CodeType) -> bool:
    """Whether a code object has the arguments of this tree: of two lambdas in a line, one does."""
    if not isinstance(node, FUNCTIONS):
        return True
    more = sum(bool(code.co_flags & flag) for flag in _ARGUMENTS)
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + more]
    said = parameters(node)
    # the name of a private one begins with that of its class
    pairs = zip(named, said, strict=False)
    return len(named) == len(said) and all(name.endswith(one) for name, one in pairs)


def parameters(node: Function) -> list[str]:
    """In the order of a code object's variables."""
    given = node.args
    rows = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return [row.arg for row in rows if row is not None]


@dataclass(frozen=True)
class Names:
    """What a function or a class says of its names: those that it assigns, and those declared."""

    assigned: frozenset[str]
    globals: frozenset[str]


def names(node: ast.AST) -> Names:
    """Of the code in `node` itself, not in functions and classes inside of it."""
    assigned, declared, outer = set[str](), set[str](), set[str]()
    body = getattr(node, "body", [])
    todo: list[ast.AST] = list(body) if isinstance(body, list) else [body]
    while todo:
        one = todo.pop()
        if isinstance(one, COMPREHENSIONS):  # whose variables are its own
            inside = (x.target.id for x in ast.walk(one) if isinstance(x, ast.NamedExpr))
            assigned |= {*inside}
            continue
        if isinstance(one, ast.Global):
            declared |= {*one.names}
        elif isinstance(one, ast.Nonlocal):
            outer |= {*one.names}
        assigned |= {*bound_by(one)}
        if not isinstance(one, (*FUNCTIONS, ast.ClassDef)):
            todo += ast.iter_child_nodes(one)
    own = assigned - declared - outer
    return Names(frozenset(own), frozenset(declared))


def bound_by(node: ast.AST) -> list[str]:
    """The names that a node itself binds."""
    if isinstance(node, ast.Name):
        return [node.id] if not isinstance(node.ctx, ast.Load) else []
    if isinstance(node, ast.alias):
        return [node.asname or node.name.partition(".")[0]]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return [node.name] if node.name else []
    if isinstance(node, ast.MatchMapping):
        return [node.rest] if node.rest else []
    return []


def targets(node: ast.AST) -> frozenset[str]:
    """The variables of a comprehension."""
    rows = [x.target for x in getattr(node, "generators", [])]
    return frozenset(x.id for row in rows for x in ast.walk(row) if isinstance(x, ast.Name))
