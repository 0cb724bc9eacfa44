"""Bytecode: a code object's instructions, what follows what, its loops, and which instructions name
variables. For Python 3.10 and later."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

LARGEST = 20_000  # instructions of one function: ~0.1 s

LOADS = {
    "LOAD_FAST",
    "LOAD_FAST_CHECK",
    "LOAD_FAST_BORROW",
    "LOAD_NAME",
    "LOAD_GLOBAL",
    "LOAD_DEREF",
    "LOAD_CLASSDEREF",
    "LOAD_FROM_DICT_OR_GLOBALS",
    "LOAD_FROM_DICT_OR_DEREF",
}
STORES = {"STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF"}
DELETES = {"DELETE_FAST", "DELETE_NAME", "DELETE_GLOBAL", "DELETE_DEREF"}
# two in one, in this order
PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
# name a variable or an attribute, and neither read nor change one
_IDLE = {
    "LOAD_CLOSURE",
    "MAKE_CELL",
    "LOAD_FAST_AND_CLEAR",
    "STORE_FAST_MAYBE_NULL",
    "IMPORT_NAME",
    "IMPORT_FROM",
    "LOAD_ATTR",
    "LOAD_METHOD",
    "LOAD_SUPER_ATTR",
    "STORE_ATTR",
    "DELETE_ATTR",
}
_NAMING = {*dis.hasname, *dis.haslocal, *dis.hasfree}
COPIES = {"COPY", "DUP_TOP"}
SWAPS = {"SWAP", "ROT_TWO", "ROT_THREE"}
_ENDS = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"}
RETURNS = {"RETURN_VALUE", "RETURN_CONST"}
_ALWAYS = {"JUMP_FORWARD", "JUMP_ABSOLUTE", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}
# in Python 3.10 any jump may lead back
_BACKWARD = {dis.opmap[name] for name in dis.opmap if "BACKWARD" in name} or set(dis.hasjabs)
# stand between others and change nothing for them
_FILLERS = {"TO_BOOL", "CACHE", "EXTENDED_ARG", "NOP"}
_CALLS = {"CALL", "CALL_KW", "CALL_FUNCTION", "CALL_FUNCTION_KW", "CALL_METHOD"}
# methods of lists, dicts, sets and deques
_CHANGING = {
    *("add", "append", "appendleft", "clear", "discard", "extend", "extendleft", "insert", "pop"),
    *("popitem", "popleft", "remove", "reverse", "rotate", "setdefault", "sort", "update"),
}
_WITHS = {"SETUP_WITH", "SETUP_ASYNC_WITH"}


Load = tuple[str, str] | None  # an instruction's name and that of a variable


class Unknown(Exception):
    """This code cannot be analyzed; the text says why."""


@dataclass(frozen=True)
class Flow:
    """A code object's instructions, and which may follow which."""

    instructions: list[dis.Instruction]
    after: list[list[int]]
    lines: list[int]
    joins: frozenset[int]  # instructions that are reached by a jump
    at: dict[int, int]  # offset -> index
    constants: tuple[Any, ...]


@lru_cache(maxsize=1000)
def flow(code: types.CodeType) -> Flow:
    """Raises Unknown."""
    if len(code.co_code) > 2 * LARGEST:
        raise Unknown(f"{code.co_name} is too long")
    found = list(dis.get_instructions(code))
    for one in found:
        known = (
            one.opname in LOADS
            or one.opname in STORES
            or one.opname in DELETES
            or one.opname in PAIRS
            or one.opname in _IDLE
        )
        if one.opcode in _NAMING and not known:
            raise Unknown(f"{code.co_name} has the instruction {one.opname}, which is not known")
    at = {one.offset: i for i, one in enumerate(found)}
    jumps = {*dis.hasjrel, *dis.hasjabs}
    after: list[list[int]] = []
    joins: set[int] = set()
    for i, one in enumerate(found):
        next_: list[int] = []
        if one.opname not in _ENDS and one.opname not in _ALWAYS and i + 1 < len(found):
            next_.append(i + 1)
        if one.opcode in jumps and one.opname not in _WITHS:
            target = at[one.argval]
            next_.append(target)
            joins.add(target)
        after.append(next_)
    for start, end, target in _handlers(code):
        handler = at[target]
        if found[handler + 1].opname == "WITH_EXCEPT_START":
            continue
        joins.add(handler)
        for i, one in enumerate(found):
            if start <= one.offset < end:
                after[i].append(handler)
    return Flow(found, after, _lines(code, found), frozenset(joins), at, code.co_consts)


def named(one: dis.Instruction) -> list[tuple[str, str]]:
    """(instruction, variable) of each variable that it loads, stores or deletes, in order."""
    if one.opname in PAIRS:
        return list(zip(PAIRS[one.opname], one.argval, strict=True))
    single = one.opname in LOADS or one.opname in STORES or one.opname in DELETES
    return [(one.opname, one.argval)] if single else []


@lru_cache(maxsize=1000)
def assigned(code: types.CodeType) -> frozenset[str]:
    """The variables that it assigns. Raises Unknown."""
    names: set[str] = set()
    for one in flow(code).instructions:
        names |= {name for kind, name in named(one) if kind not in LOADS}
    return frozenset(names)


def has_loops(code: types.CodeType) -> bool:
    """Whether any of its instructions may jump back; a quick look."""
    return not _BACKWARD.isdisjoint(code.co_code[::2])


def _handlers(code: types.CodeType) -> Iterable[tuple[int, int, int]]:
    """(first offset, offset behind the last, handler); Python 3.10 has instructions instead."""
    entries = getattr(dis.Bytecode(code), "exception_entries", ())
    return [(entry.start, entry.end, entry.target) for entry in entries]


def _lines(code: types.CodeType, found: list[dis.Instruction]) -> list[int]:
    spans = [(start, end, line) for start, end, line in code.co_lines() if line is not None]
    out, i, last = [], 0, code.co_firstlineno
    for one in found:
        while i < len(spans) and spans[i][1] <= one.offset:
            i += 1
        if i < len(spans) and spans[i][0] <= one.offset:
            last = spans[i][2]
        out.append(last)
    return out


def loops(flow: Flow, index: int) -> list[tuple[int, set[int]]]:
    """(head, body) of each loop that contains the instruction `index`, innermost first."""
    before: list[list[int]] = [[] for _ in flow.after]
    for i, following in enumerate(flow.after):
        for j in following:
            before[j].append(i)
    from_start = reach([0], flow.after, -1)
    found: dict[int, set[int]] = {}
    heads = {j for i, following in enumerate(flow.after) for j in following if j <= i}
    for head in heads & from_start:
        # the head is on every way to the ends of its passes
        around = reach([0], flow.after, head) if head else set()
        ends = [i for i in before[head] if i in from_start and i not in around and i >= head]
        if ends:
            body = reach(ends, before, head) | {head}
            if index in body:
                found[head] = body & from_start
    return sorted(found.items(), key=lambda row: len(row[1]))


def beginning(found: Flow, head: int) -> list[int]:
    """The expression of a `for` loop."""
    out: list[int] = []
    if found.instructions[head].opname == "FOR_ITER":
        for i in range(head - 1, -1, -1):
            if found.instructions[i].opname.startswith(("STORE", "POP", "RETURN", "RESUME")):
                break
            out.append(i)
    return out


def only_where(found: Flow, head: int, body: set[int], attribute: str) -> set[int]:
    """The instructions of a loop that run only where an object's `attribute` is true."""
    after = found.after.copy()
    for i in body:
        one = found.instructions[i]
        if one.opname != "LOAD_ATTR" or one.argval != attribute:
            continue
        test = next(
            j for j in range(i + 1, len(after)) if found.instructions[j].opname not in _FILLERS
        )
        jump = found.instructions[test].opname
        if "JUMP" in jump and "IF_" in jump:
            target = found.at[found.instructions[test].argval]
            true = target if "IF_TRUE" in jump else test + 1
            after[test] = [j for j in after[test] if j != true]
    return body - reach([head], after, -1)


def changed(found: Flow, i: int) -> str | None:
    """The variable that instruction `i` loads, if its value is changed right after: by a method
    such as append(), or by `variable[key] = …`."""
    loaded = [name for kind, name in named(found.instructions[i]) if kind in LOADS]
    after = [x for x in found.instructions[i + 1 : i + 9] if x.opname not in _FILLERS][:3]
    names = [x.opname for x in after]
    if not loaded or not names:
        return None
    if names[0] == "STORE_SUBSCR":  # its key is loaded together with it
        return loaded[0] if len(loaded) == 2 else None
    if names[0] in ("LOAD_ATTR", "LOAD_METHOD"):
        return loaded[-1] if after[0].argval in _CHANGING else None
    key = names[0].startswith("LOAD_")
    stores = names[1:2] == ["STORE_SUBSCR"] or names[1:2] == ["DUP_TOP_TWO"]
    return loaded[-1] if key and (stores or names[1:] == ["COPY", "COPY"]) else None


def arguments(found: Flow, i: int) -> tuple[list[Load], dict[str, Load]]:
    """The variables passed to a call of what instruction `i` loads: by position, up to the first
    complex argument, and by keyword. None stands for a constant."""
    given: list[Load] = []
    keywords: tuple[str, ...] = ()
    constant: Any = ()
    for one in found.instructions[i + 1 :]:
        name = one.opname
        loads = named(one)
        if loads and all(kind in LOADS for kind, _ in loads):
            given += loads
        elif name == "LOAD_CONST":
            given.append(None)
            constant = one.argval
        elif name == "KW_NAMES":
            keywords = found.constants[one.arg or 0]  # dis does not say
        elif name in _CALLS:
            if name in ("CALL_KW", "CALL_FUNCTION_KW"):
                given.pop()
                keywords = constant
            more = len(given) - (one.arg or 0)
            if more:  # an inner call: what it calls stands before its arguments
                return given[: max(more - 1, 0)], {}
            at = len(given) - len(keywords)
            return given[:at], dict(zip(keywords, given[at:], strict=True))
        elif name not in _FILLERS and name not in ("PUSH_NULL", "PRECALL"):
            return given[:-1], {}  # the last is a part of an expression
    return [], {}


def reach(start: Iterable[int], edges: list[list[int]], without: int) -> set[int]:
    seen, todo = set(), [i for i in start if i != without]
    while todo:
        i = todo.pop()
        if i not in seen:
            seen.add(i)
            todo += [j for j in edges[i] if j != without]
    return seen


Position = tuple[tuple[int, int], tuple[int, int]]


def _position(one: dis.Instruction) -> Position | None:
    where = getattr(one, "positions", None)
    if where is None or None in where:
        return None
    return (where.lineno, where.col_offset), (where.end_lineno, where.end_col_offset)


def comprehensions(found: Flow) -> dict[str, list[Position]]:
    """From Python 3.12 on, a comprehension is part of the code around it: its variable -> where the
    name means it."""
    out: dict[str, list[Position]] = {}
    for one in found.instructions:
        if one.opname == "LOAD_FAST_AND_CLEAR" and (where := _position(one)) is not None:
            out.setdefault(one.argval, []).append(where)
    return out


def is_hidden(hidden: dict[str, list[Position]], name: str, one: dis.Instruction) -> bool:
    if name not in hidden:
        return False
    where = _position(one)
    return where is not None and any(
        begin <= where[0] and where[1] <= end for begin, end in hidden[name]
    )
