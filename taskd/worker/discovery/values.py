"""Values of a script's variables: which of them can be recorded, and how they are put back."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import torch

from taskd.cython_api import frozen
from taskd.worker.discovery.reach import ITEMS as ITEMS
from taskd.worker.state import plain
from taskd.worker.state.stored_attributes import MAPPINGS

# bytes of a tensor, array or text: it is copied twice a step, in ~0.1 ms
LARGEST = 1 << 20
# items of a list of numbers, which take ~2 ms of each step; of other containers, ITEMS do
LONGEST = 20_000
DEEPEST = 10  # nested containers

SCALARS = (bool, int, float, complex, type(None), torch.dtype, torch.device, torch.Size)
_SEQUENCES = (list, tuple, deque)


class NotRecordable(Exception):
    """The text says what the value is."""


def recordable(
    value: Any,
    items: int = LONGEST,
    numbers: int = LONGEST,
    depth: int = 0,
    met: list[Any] | None = None,
) -> Any:
    """A copy of `value` that `plain` encodes; tensors are not copied. `items`: of a container, at
    most; `numbers`: of a list of numbers; `met`: gets the tensors and arrays, and the containers
    inside. Raises NotRecordable."""
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind in (str, bytes, bytearray):
        if len(value) > LARGEST:
            raise NotRecordable(f"a {kind.__name__} of more than {LARGEST} bytes")
        return bytes(value) if kind is bytearray else value
    if kind is torch.Tensor:
        if value.layout is not torch.strided or value.device.type == "meta":
            raise NotRecordable(f"a tensor of layout {value.layout} on {value.device}")
        if value.numel() * value.element_size() > LARGEST:
            raise NotRecordable(
                f"a tensor of {value.numel() * value.element_size() / 2**20:.1f} MiB, too large to"
                f" copy in every step ({LARGEST >> 20} MiB)"
            )
        if met is not None:
            met.append(value)
        return value.detach()
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        if value.dtype.hasobject or value.nbytes > LARGEST:
            raise NotRecordable(f"an array of {value.nbytes} bytes and type {value.dtype}")
        if met is not None and isinstance(value, numpy.ndarray):
            met.append(value)
        return value
    if depth >= DEEPEST:
        raise NotRecordable("nested too deeply")
    if met is not None and depth and kind in (*MAPPINGS, list, deque, set):
        met.append(value)
    if kind in _SEQUENCES and len(value) <= numbers and frozen.all_numbers(value):
        return value if kind is tuple else list(value)
    if hasattr(kind, "__len__") and len(value) > items:
        raise NotRecordable(f"a {kind.__name__} of {len(value)} items")
    if kind in MAPPINGS:
        rows = list(value.items())  # another thread of the script may change it
        keys = [recordable(k, items, numbers, depth + 1) for k, _ in rows]
        held = [recordable(v, items, numbers, depth + 1, met) for _, v in rows]
        return dict(zip(keys, held, strict=True))
    if kind in _SEQUENCES:
        made = [recordable(v, items, numbers, depth + 1, met) for v in value]
        return tuple(made) if kind is tuple else made
    if kind in (set, frozenset):
        return set(value) if all(type(v) in (*SCALARS, str, bytes) for v in value) else _not(kind)
    return _not(kind)


def _not(kind: type) -> Any:
    raise NotRecordable(f"a {kind.__module__}.{kind.__qualname__}, which cannot be recorded")


def describes_itself(value: Any) -> bool:
    """Whether `like` can make it again from its record alone."""
    kind = type(value)
    if kind is torch.Tensor:
        return value.device.type == "cpu" and not value.requires_grad
    if kind is dict:
        return all(map(describes_itself, value.values()))
    if kind in (list, tuple):
        return all(map(describes_itself, value))
    numpy = sys.modules.get("numpy")
    arrays = (numpy.ndarray, numpy.generic) if numpy is not None else ()
    return kind in (*SCALARS, str, bytes, set) or isinstance(value, arrays)


def is_changeable(value: Any) -> bool:
    """Whether a script may change what it holds without assigning it."""
    kind = type(value)
    if kind is torch.Tensor:
        # on the host: copying from a device waits for it
        return value.device.type == "cpu" and not value.requires_grad
    numpy = sys.modules.get("numpy")
    return kind in (*MAPPINGS, list, deque, set, bytearray) or (
        numpy is not None and kind is numpy.ndarray
    )


def is_same(present: Any, recorded: Any) -> bool:
    try:
        return plain.encode(recordable(present)) == plain.encode(recorded)
    except (NotRecordable, plain.Unrecordable):
        return False
