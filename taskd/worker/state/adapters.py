"""Adapts what protect() takes without state_dict() and load_state_dict(): a script's own tensors,
arrays and containers.

They are restored in place, so that every reference that the script holds stays valid.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch


class Stateful(Protocol):
    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> None: ...


class _InPlace:
    """`take` gives the content of `value` as plain values, `put` replaces it."""

    def __init__(
        self, value: Any, take: Callable[[Any], Any], put: Callable[[Any, Any], None]
    ) -> None:
        self._value, self._take, self._put = value, take, put

    def state_dict(self) -> Any:
        return self._take(self._value)

    def load_state_dict(self, state: Any) -> None:
        self._put(self._value, state)


def adapt(value: Any) -> Stateful | None:
    """An object that records and restores `value`, or None for an unknown type.

    A dict, list, deque, set or bytearray is recorded with its content, which must be plain
    (`plain.py`).
    """
    numpy = sys.modules.get("numpy")
    if isinstance(value, torch.Tensor):
        return _InPlace(value, lambda t: t.detach(), _put_tensor)
    if numpy is not None and type(value) is numpy.ndarray and not value.dtype.hasobject:
        return _InPlace(value, lambda a: a, _put_array)
    averaging = sys.modules.get("torch.distributed.algorithms.model_averaging.averagers")
    if averaging is not None and isinstance(value, averaging.ModelAverager):
        return _InPlace(value, lambda a: a.step, lambda a, step: setattr(a, "step", step))
    for kind, put in _CONTAINERS.items():
        if isinstance(value, kind):
            return _InPlace(value, kind, put)
    return None


def _put_tensor(tensor: torch.Tensor, state: torch.Tensor) -> None:
    if tensor.shape != state.shape:
        raise RuntimeError(
            f"the record has a tensor of shape {tuple(state.shape)}, here it is"
            f" {tuple(tensor.shape)}"
        )
    with torch.no_grad():
        tensor.copy_(state)


def _put_array(array: Any, state: Any) -> None:
    if array.shape != state.shape:
        raise RuntimeError(
            f"the record has an array of shape {state.shape}, here it is {array.shape}"
        )
    array[...] = state


def _put_mapping(mapping: dict[Any, Any], state: dict[Any, Any]) -> None:
    mapping.clear()
    mapping.update(state)


def _put_sequence(sequence: Any, state: Any) -> None:
    sequence.clear()
    sequence.extend(state)


def _put_set(members: set[Any], state: set[Any]) -> None:
    members.clear()
    members.update(state)


_CONTAINERS: dict[type, Callable[[Any, Any], None]] = {
    dict: _put_mapping,
    list: _put_sequence,
    deque: _put_sequence,
    set: _put_set,
    bytearray: _put_sequence,
}
