"""Checks the arguments of the documented functions. Each check returns what is wrong, "" if
nothing."""

from __future__ import annotations

import logging

MAX_RANK = 2**31 - 1


def refuse(log: logging.Logger, function: str, reason: str) -> bool:
    log.error("%s: %s", function, reason)
    return False


def not_int(name: str, value: object, lowest: int, highest: int, remedy: str) -> str:
    if type(value) is int and lowest <= value <= highest:
        return ""
    return f"{name} is {value!r}: allowed is an int from {lowest} to {highest}; {remedy}"


def not_one_of(name: str, value: object, known: tuple[str, ...]) -> str:
    if isinstance(value, str) and value in known:
        return ""
    return f"{name} is {value!r}: allowed is one of {', '.join(known)}"


def wrong_config(log: logging.Logger, config: object, known: tuple[str, ...]) -> str:
    """What is wrong with an agent's or proxy's dict; "" if nothing. Numbers are documented as
    strings; ints are accepted too. A key that is not known is a newer one's, and ignored with a
    warning."""
    if not isinstance(config, dict):
        return f"config is {type(config).__name__}: give a dict with some of {', '.join(known)}"
    for key, value in config.items():
        if key not in known:
            shown, names = str(key)[:80], ", ".join(known)
            log.warning("config key %r is unknown, and ignored; known: %s", shown, names)
        elif key.endswith(("Port", "Rank")):
            lowest, highest = (1, 65535) if key.endswith("Port") else (0, MAX_RANK)
            text = str(value) if type(value) in (str, int) else ""
            if not (
                text.isascii()
                and text.isdigit()
                and len(text) <= 10
                and lowest <= int(text) <= highest
            ):
                return (
                    f"config key {key!r} is {value!r}: allowed is a number from {lowest} to"
                    f" {highest}, as a string"
                )
        elif not isinstance(value, str) or not value.strip():
            return f"config key {key!r} is {value!r}: allowed is a string that is not empty"
    return ""
