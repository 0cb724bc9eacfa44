"""Types of values: how a text is parsed, and what is allowed, in words. An invalid text raises
BadSetting and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from taskd.core.job import ladder

T = TypeVar("T")
E = TypeVar("E", bound=Enum)

# strategies as Ascend Operator writes them into HIGH_AVAILABILITY: recover-in-place is a `recover`
# there
HIGH_AVAILABILITY = ("retry", "recover", "dump", "elastic-training")
# what MindSpore's MS_ENABLE_TFT switches on; TSP and TRE concern only MindSpore, RSC is pod-level
# rescheduling
FAULT_TOLERANCE = {
    "UCE": "retry",
    "HCCE": "retry",
    "ARF": "recover",
    "TTP": "dump",
    "RSC": None,
    "TSP": None,
    "TRE": None,
}


class BadSetting(ValueError):
    """A variable or config key has an invalid value. The text names it, the value, what is allowed,
    and the remedy."""

    def __init__(self, name: str, value: object, allowed: str, remedy: str) -> None:
        super().__init__(f"{name}={value!r} is refused: allowed is {allowed}; {remedy}")
        self.name, self.value, self.allowed, self.remedy = name, value, allowed, remedy


@dataclass(frozen=True)
class Wrong:
    """What is wrong with a value on this machine. `never`: it will not become right by itself."""

    what: str
    remedy: str
    never: bool = True


@dataclass(frozen=True)
class Kind(Generic[T]):
    allowed: str
    # raises ValueError; its text, if any, replaces the parameter's remedy
    parse: Callable[[str], T]
    # looks at what a value names; only when a job starts, as it may take a while
    here: Callable[[T], Wrong | None] = lambda _: None


def text(allowed: str = "any text") -> Kind[str]:
    return Kind(allowed, lambda given: given)


def choice(*known: str) -> Kind[str]:
    """One of `known`, case-sensitive."""
    return Kind(f"one of {', '.join(known)}", lambda given: _one(given, {k: k for k in known}))


def any_case(*known: str) -> Kind[str]:
    """One of `known`, case-insensitive."""
    return Kind(
        f"one of {', '.join(known)}",
        lambda given: _one(given.lower(), {k.lower(): k for k in known}),
    )


def member(of: type[E]) -> Kind[E]:
    """A member of an Enum, by its value."""
    return Kind(
        f"one of {', '.join(m.value for m in of)}",
        lambda given: _one(given.lower(), {m.value: m for m in of}),
    )


def switch(on: str = "on", off: str = "off") -> Kind[bool]:
    return Kind(
        f"one of {on}, {off}",
        lambda given: _one(given.lower(), {on.lower(): True, off.lower(): False}),
    )


def auto_or_count(highest: int) -> Kind[int | None]:
    """auto (None), or a whole number of at least 1."""

    def parse(given: str) -> int | None:
        if given.lower() == "auto":
            return None
        if not given.isascii() or not given.isdigit() or not 1 <= int(given) <= highest:
            raise ValueError
        return int(given)

    return Kind(f"auto, or a whole number from 1 to {highest}", parse)


def only(on: str) -> Kind[bool]:
    """A switch for which, by the documents, every other value means off."""
    return Kind(f"{on}; any other value is off", lambda given: given.lower() == on)


def whole(lowest: int, highest: int, unit: str = "a number") -> Kind[int]:
    def parse(given: str) -> int:
        if not (
            given.isascii()
            and given.isdigit()
            and len(given) <= len(str(highest))
            and lowest <= int(given) <= highest
        ):
            raise ValueError
        return int(given)

    return Kind(f"{unit} from {lowest} to {highest}", parse)


def ports(least: int) -> Kind[range]:
    """LOWEST-HIGHEST, at least that many ports."""

    def parse(given: str) -> range:
        lowest, _, highest = given.partition("-")  # libtaskd knows no spaces within
        both = (lowest, highest)
        if not all(p.isascii() and p.isdigit() and len(p) <= 5 for p in both):
            raise ValueError
        found = range(int(lowest), int(highest) + 1)
        if len(found) < least or found[0] < 1024 or found[-1] > 65535:
            raise ValueError
        return found

    return Kind(f"LOWEST-HIGHEST, from 1024 to 65535, at least {least} ports", parse)


def seconds(lowest: float, highest: float) -> Kind[float]:
    return Kind(
        f"seconds from {lowest:g} to {highest:g}", lambda given: _real(given, lowest, highest)
    )


def seconds_or_off(lowest: float, highest: float) -> Kind[float | None]:
    allowed = f"seconds from {lowest:g} to {highest:g}, or off"
    return Kind(
        allowed, lambda given: None if given.lower() == "off" else _real(given, lowest, highest)
    )


UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def interval() -> Kind[tuple[float | None, int | None] | None]:
    """Seconds, or steps; None: off."""

    def parse(given: str) -> tuple[float | None, int | None] | None:
        if given.lower() == "off":
            return None
        number, unit = given.rstrip("abcdefghijklmnopqrstuvwxyz"), given.lstrip("0123456789.")
        if unit == "steps":
            return None, whole(1, 10**9).parse(number)
        if unit not in UNITS:
            raise ValueError
        seconds = _real(number, 0.001, 1e6) * UNITS[unit]
        if seconds < 1:
            raise ValueError
        return seconds, None

    allowed = "at least 1 s, as a number and s, min, h or steps, as in 30min or 1000steps; or off"
    return Kind(allowed, parse)


def port() -> Kind[int]:
    return whole(1, 65535, "a port")


def strategies() -> Kind[tuple[str, ...]]:
    """The rungs of a ladder, in order of cost, `exit` last."""
    return Kind(f"a comma-separated list of {', '.join(ladder.STRATEGIES)}", ladder.parse)


def high_availability() -> Kind[tuple[str, ...]]:
    def parse(given: str) -> tuple[str, ...]:
        names = {name.strip() for name in given.split(",") if name.strip()}
        if not names or names - set(HIGH_AVAILABILITY):
            raise ValueError
        return tuple(s for s in HIGH_AVAILABILITY if s in names)

    return Kind(f"a comma-separated list of {', '.join(HIGH_AVAILABILITY)}", parse)


def fault_tolerance() -> Kind[frozenset[str]]:
    """MS_ENABLE_TFT: what is on in `{UCE:1, HCCE:1}`. The guides write it with and without quotes
    and spaces."""

    def parse(given: str) -> frozenset[str]:
        inner = given.strip("'\" ")
        if not (inner.startswith("{") and inner.endswith("}")):
            raise ValueError
        on = set()
        for entry in inner[1:-1].split(","):
            name, colon, value = (part.strip(" '\"") for part in entry.partition(":"))
            if not entry.strip():
                continue
            if name not in FAULT_TOLERANCE or not colon or value not in ("0", "1"):
                raise ValueError
            if value == "1":
                on.add(name)
        return frozenset(on)

    return Kind(
        f"{{NAME:1, ...}} with the names {', '.join(FAULT_TOLERANCE)} and the values 0 and 1", parse
    )


def _one(given: str, known: dict[str, T]) -> T:
    if given not in known:
        raise ValueError
    return known[given]


def _real(given: str, lowest: float, highest: float) -> float:
    try:
        value = float(given)
    except ValueError:
        raise ValueError from None  # the parameter's remedy says more than its text
    if not given.isascii() or "_" in given or not lowest <= value <= highest:
        raise ValueError
    return value
