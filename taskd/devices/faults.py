"""Turns errors into faults: the patterns that name a fault, how errors match them, and users'
patterns.

A pattern is data. taskd's own are in `tables.py`, each with its source; users' come first. An error
is matched together with its causes, the root first: frameworks wrap errors, and the outermost says
least.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

Raised = type[BaseException]


class FaultType(enum.IntEnum):
    """Kinds of fault, numbered as MindCluster's protocol numbers them."""

    MEMORY = 0  # on-chip memory
    OTHER = 1
    NETWORK = 2


@dataclass(frozen=True)
class Fault:
    """The fault that an error reports. `text`: its first line, at most 300 characters. `stopped`:
    taskd itself stopped the device, as an interruption does; not a fault."""

    type: FaultType
    name: str
    text: str
    stopped: bool = False


@dataclass(frozen=True)
class Pattern:
    """The errors that mean one fault. An error matches if it has one of `types` and one of `codes`
    or `texts`.

    codes: one with a letter ("EI0006") matches as a word. One of digits ("507053") matches only
        where the error calls it a code: "error code is 507053", "error_code=507053", or an
        attribute `error_code`. "hccl:9" matches only if the error also names that library.
    texts: words of the error, matched as whole words. "…" matches anything in between, a leading
        "^" the beginning of the error.
    types: exception classes; by default RuntimeError, which frameworks raise. Without codes and
        texts the class is enough.
    type: None means that such an error is not a fault, whatever other patterns say.
    source: where this is documented.
    """

    name: str
    type: FaultType | None
    codes: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    types: tuple[Raised, ...] = ()
    source: str = ""
    stopped: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError(
                f"Pattern(name={self.name!r}): the name must be non-empty text; reports call the"
                " fault by it"
            )
        at = f"Pattern {self.name!r}: "
        if self.type is not None and not isinstance(self.type, FaultType):
            raise TypeError(
                f"{at}type is {self.type!r}; it must be a FaultType, or None for errors that are"
                " not faults"
            )
        for field in ("codes", "texts", "types"):
            if not isinstance(getattr(self, field), tuple):
                raise TypeError(
                    f"{at}{field} is {getattr(self, field)!r}; it must be a tuple, even with one"
                    " entry: (entry,)"
                )
        for code in self.codes:
            if not isinstance(code, str) or not re.fullmatch(r"[A-Za-z]\w*:\d+|\w{2,}", code):
                raise ValueError(
                    f"{at}code {code!r} must be 2 or more letters, digits and underscores, or like"
                    " 'hccl:9'"
                )
        for text in self.texts:
            if not isinstance(text, str) or sum(c.isalnum() for c in text) < 6:
                raise ValueError(
                    f"{at}text {text!r} must have at least 6 letters or digits: a shorter one would"
                    " match errors of any kind"
                )
        for kind in self.types:
            if not (isinstance(kind, type) and issubclass(kind, BaseException)):
                raise TypeError(f"{at}types has {kind!r}; it must have classes of exceptions only")
        if not (self.codes or self.texts or self.types):
            raise ValueError(f"{at}there is nothing to match by; give codes, texts or types")
        if not (self.codes or self.texts) and (
            broad := [k.__name__ for k in self.types if issubclass(RuntimeError, k)]
        ):
            raise ValueError(
                f"{at}types alone, with {broad[0]} among them, would match every error; add codes"
                " or texts"
            )

    def matches(self, error: BaseException) -> bool:
        """Whether `error` itself, without its causes, matches."""
        if not isinstance(error, self.types or RuntimeError):
            return False
        if not (self.codes or self.texts):
            return True
        text, number = _text(error), getattr(error, "error_code", None)
        return any(_has_code(code, text, number) for code in self.codes) or any(
            _phrase(t).search(text) for t in self.texts
        )


_CODE = r"(?i:error[ _]?code)\W{{0,2}}(?i:is)?\W{{0,2}}0*{}(?!\w)"


def _has_code(code: str, text: str, number: object) -> bool:
    library, _, digits = code.rpartition(":")
    if not digits.isdigit():
        return re.search(rf"(?<!\w){code}(?!\w)", text) is not None
    if library and not re.search(rf"(?i)(?<!\w){library}", text):
        return False
    return (type(number) is int and number == int(digits)) or re.search(
        _CODE.format(int(digits)), text
    ) is not None


@functools.cache
def _phrase(text: str) -> re.Pattern[str]:
    words = text.removeprefix("^")
    start = r"\A\s*" if words != text else r"(?<!\w)" if words[0].isalnum() else ""
    end = r"(?!\w)" if words[-1].isalnum() else ""
    return re.compile(
        start + ".*?".join(re.escape(part) for part in words.split("…")) + end, re.DOTALL
    )


def causes(error: BaseException) -> list[BaseException]:
    """The error, its causes and contexts, and the members of groups, outermost first."""
    chain: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or any(current is c for c in chain):
            continue
        chain.append(current)
        members = getattr(current, "exceptions", ())
        inner = (
            [m for m in members if isinstance(m, BaseException)]
            if isinstance(members, (tuple, list))
            else []
        )
        waiting += [*inner, current.__context__, current.__cause__]
    return chain


def name_fault(error: BaseException, *tables: Iterable[Pattern]) -> Fault | None:
    """The fault that `error` reports, by the first table that matches. A fault takes precedence
    over an error that only reports that the device was stopped."""
    left = causes(error)[::-1]
    stopped: Fault | None = None
    for table in tables:
        rows = list(table)
        for cause in list(left):
            row = next((r for r in rows if r.matches(cause)), None)
            if row is None:
                continue
            if row.type is None:
                left.remove(cause)
                continue
            fault = Fault(row.type, row.name, first_line(cause), row.stopped)
            if not fault.stopped:
                return fault
            stopped = stopped or fault
    return stopped


def first_line(error: BaseException) -> str:
    """The error as in the last line of a traceback, without line ends, at most 300 characters."""
    lines = _text(error).strip().splitlines()
    return ": ".join([type(error).__name__, *lines[:1]])[:300]


def _text(error: BaseException) -> str:
    try:
        return str(error)
    # a user's class whose __str__ fails must not hide the original error
    except Exception:
        return ""


_registered: tuple[Pattern, ...] = ()


def add(pattern: Pattern) -> None:
    """Put `pattern` before the tables of every device; once only."""
    global _registered
    if pattern not in _registered:
        _registered += (pattern,)


def registered() -> tuple[Pattern, ...]:
    """The patterns that users have added, in order."""
    return _registered
