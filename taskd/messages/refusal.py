"""Explains for the log why bytes were rejected; they may be hostile, and a GiB long."""

from __future__ import annotations

import re
import reprlib
from typing import Any

import msgspec

SHOWN = 200  # characters of a value

_anything = msgspec.msgpack.Decoder()


def explained(data: bytes, error: Exception, what: str, fields: tuple[str, ...] = ()) -> str:
    """Explain why `data` is not `what`: the message, the field, the value, and what was expected.
    `fields`: the names of the positions, if it is encoded as an array."""
    if not isinstance(error, msgspec.ValidationError):
        return f"not msgpack: {type(error).__name__}"
    try:
        raw = _anything.decode(data)
    except Exception as reason:  # an error past the point where the decoder stopped
        return f"not msgpack: {type(reason).__name__}"
    expected, _, at = str(error).partition(" - at ")
    expected = expected[:SHOWN]  # it repeats unknown names, which may be long
    path = at.strip("`").rpartition("`")[2]  # of a key of a mapping: "key` in `$.members"
    name = raw.get("type") if isinstance(raw, dict) else None
    if name is None or (path in ("", "$", "$.type") and not expected.startswith("Object ")):
        if fields and (found := re.fullmatch(r"\$\[(\d+)\]", path)):
            return f"{what}, {fields[int(found[1])]}: {_short(_at(raw, path))}: {expected}"
        return f"not {what}: {_short(raw if name is None else name)}: {expected}"
    known = name if isinstance(name, str) else _short(name)  # the last one, if it occurs twice
    field = known[:SHOWN] + path.removeprefix("$")
    if expected.startswith("Object "):  # "missing required field": there is no value
        return f"{field}: {expected}"
    return f"{field}: {_short(_at(raw, path))}: {expected}"


def _at(raw: Any, path: str) -> Any:
    """Return the value in `raw` at `path`; at [...], in a mapping or a set, its container."""
    for field, index in re.findall(r"\.(\w+)|\[(\d+)\]", path.partition("[...]")[0]):
        try:
            raw = raw[field] if field else raw[int(index)]
        except (KeyError, IndexError, TypeError):  # a field occurs twice, and `raw` has the last
            return raw
    return raw


class _Short(reprlib.Repr):
    """A bounded repr(): of deep nesting repr() overflows the stack, and of 1 GiB it takes 4 GiB."""

    def repr_bytes(self, value: bytes, level: int) -> str:
        return repr(value[: self.maxstring])

    def repr_Ext(self, value: msgspec.msgpack.Ext, level: int) -> str:
        return f"Ext({value.code}, {self.repr1(value.data, level)})"


def _short(value: Any) -> str:
    return _Short().repr(value)[:SHOWN]
