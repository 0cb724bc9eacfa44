"""The plain attributes of an object that has no state_dict(): a trainer, a callback.

Numbers, text, tensors, arrays and containers of these are recorded and restored, the containers and
tensors in place. Everything else, such as a model or an open file, stays as each process made it.
"""

from __future__ import annotations

import collections
import copy
import logging
from collections.abc import Collection
from typing import Any

import torch

from taskd.worker.state import plain
from taskd.worker.state.stored_attributes import Exchanges

log = logging.getLogger("taskd.worker")

LIMIT = 1 << 20  # bytes of one attribute when it is first seen: a larger one is data
_ATOMS = (bool, int, float, complex, str, bytes, type(None))
_LISTS = (list, collections.deque)


class Attributes:
    """Records and restores `owner`'s, without those in `leave`."""

    def __init__(self, owner: Any, leave: Collection[str] = ()) -> None:
        self._owner, self._left = owner, set(leave)
        self._taken: set[str] = set()  # names that were recorded before
        self._exchanges = Exchanges()

    def state_dict(self) -> dict[str, Any]:
        found = {}
        for name, value in list(vars(self._owner).items()):
            if type(value) in _ATOMS:
                found[name] = value
            elif name not in self._left:
                try:
                    found[name] = _plain(value)
                    if name not in self._taken and len(plain.encode(found[name])) > LIMIT:
                        raise plain.Unrecordable(f"more than {LIMIT} bytes")
                    self._taken.add(name)
                    self._exchanges.look(name, _written(value))
                except plain.Unrecordable as error:
                    found.pop(name, None)
                    self._left.add(name)
                    log.debug("not restored: %s.%s: %s", type(self._owner).__name__, name, error)
        return {"values": found, "others": [n for n in vars(self._owner) if n not in found]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        present = vars(self._owner)
        for name in [n for n in present if n not in state["values"] and n not in state["others"]]:
            del present[name]  # it had no value yet, or that of its class
        for name, value in state["values"].items():
            fresh = self._exchanges.look(name, _written(present.get(name)))
            present[name] = _put(present.get(name), value, fresh)


def _written(value: Any) -> list[Any]:
    """The containers and tensors in it that `_put` writes to."""
    if isinstance(value, dict):
        return [value, *(part for inner in value.values() for part in _written(inner))]
    return [value] if isinstance(value, (torch.Tensor, *_LISTS)) else []


def _plain(value: Any) -> Any:
    """`value` of types that can be recorded. Raises Unrecordable."""
    if type(value) in _ATOMS:
        return value
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, _LISTS):
        return [_plain(inner) for inner in value]
    if type(value) is tuple:
        return tuple(map(_plain, value))
    plain.encode(value)
    return value


def _put(present: Any, value: Any, fresh: bool) -> Any:
    """`value`, or `present` with its content. `fresh`: nothing that is there is written to."""
    if fresh and isinstance(present, (dict, *_LISTS)):
        present = copy.copy(present)
    if isinstance(present, dict) and isinstance(value, dict):
        for key in [key for key in present if key not in value]:
            del present[key]
        for key, inner in value.items():
            present[key] = _put(present.get(key), inner, fresh)
    elif isinstance(present, _LISTS) and isinstance(value, list):
        present.clear()
        present.extend(value)
    elif isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor):
        if fresh or (present.shape, present.dtype) != (value.shape, value.dtype):
            return value.to(present.device)
        with torch.no_grad():
            present.copy_(value)
    else:
        return value
    return present
