"""The documented file profilingSwitch: `{"Step": "on", "DataLoader": "off", ...}`. A key that is
missing is off."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from taskd.messages.to_rank import RANGES

MOST_BYTES = 65_536
STATES = {"on": True, "off": False}


class BadSwitch(ValueError):
    """The text says what is wrong, and what is allowed."""


def parse(data: bytes) -> tuple[int, ...]:
    """The numbers of the ranges that are on. Raises BadSwitch."""
    if len(data) > MOST_BYTES:
        raise BadSwitch(f"it has {len(data)} bytes; allowed are {MOST_BYTES}")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadSwitch(f"it is not JSON: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise BadSwitch("it is not a JSON object of the keys " + ", ".join(RANGES))
    for key, state in found.items():
        if key not in RANGES:
            raise BadSwitch(f"key {key[:60]!r} is unknown; allowed are {', '.join(RANGES)}")
        if not isinstance(state, str) or state not in STATES:
            raise BadSwitch(f"{key} is {str(state)[:60]!r}; allowed are on and off")
    return tuple(n for n, name in enumerate(RANGES) if STATES[found.get(name, "off")])


def read(path: Path) -> tuple[int, ...]:
    """What the file says; nothing if there is none. Raises BadSwitch."""
    try:
        with open(path, "rb") as file:
            return parse(file.read(MOST_BYTES + 1))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise BadSwitch(f"it cannot be read: {error.strerror}") from None


def numbers(names: Iterable[str]) -> tuple[int, ...]:
    """The numbers of ranges, named as in the file, in any case, or by a short word: STEP,
    COMMUNICATION, CHECKPOINT, FORWARD, LOADER. Raises BadSwitch."""
    short = {
        "communication": "CommunicationOperator",
        "checkpoint": "SaveCheckpoint",
        "forward": "FP",
        "loader": "DataLoader",
    }
    known = {name.lower(): number for number, name in enumerate(RANGES)}
    known |= {word: RANGES.index(name) for word, name in short.items()}
    found = set()
    for name in names:
        if (number := known.get(name.lower())) is None:
            words = ", ".join((*RANGES, *(word.upper() for word in short)))
            raise BadSwitch(f"range {name[:60]!r} is unknown; allowed are {words}")
        found.add(number)
    return tuple(sorted(found))
