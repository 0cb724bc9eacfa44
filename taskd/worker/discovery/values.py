"""Values of a script's variables: which of them can be recorded, and how they are put back."""

from __future__ import annotations

import copy
import sys
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from taskd.cython_api import frozen
from taskd.worker.discovery.reach import ITEMS as ITEMS
from taskd.worker.state import plain

# bytes of a tensor, array or text: it is copied twice a step, in ~0.1 ms
LARGEST = 1 << 20
# items of a list of numbers, which take ~2 ms of each step; of other containers, ITEMS do
LONGEST = 20_000
DEEPEST = 10  # nested containers

SCALARS = (bool, int, float, complex, type(None), torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, defaultdict)
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
    if met is not None and depth and kind in (*_MAPPINGS, list, deque, set):
        met.append(value)
    if kind in _SEQUENCES and len(value) <= numbers and frozen.all_numbers(value):
        return value if kind is tuple else list(value)
    if hasattr(kind, "__len__") and len(value) > items:
        raise NotRecordable(f"a {kind.__name__} of {len(value)} items")
    if kind in _MAPPINGS:
        keys = [recordable(k, items, numbers, depth + 1) for k in value]
        held = [recordable(v, items, numbers, depth + 1, met) for v in value.values()]
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
    return kind in (*_MAPPINGS, list, deque, set, bytearray) or (
        numpy is not None and kind is numpy.ndarray
    )


def is_same(present: Any, recorded: Any) -> bool:
    try:
        return plain.encode(recordable(present)) == plain.encode(recorded)
    except (NotRecordable, plain.Unrecordable):
        return False


def like(present: Any, recorded: Any) -> Any:
    """A new object with the recorded value, of the kind and on the device of `present`."""
    if isinstance(recorded, torch.Tensor):
        made = recorded.clone()
        if isinstance(present, torch.Tensor):
            made = made.to(present.device)
            if present.is_leaf and present.requires_grad:
                made.requires_grad_()
        return made
    if isinstance(recorded, tuple):
        matching = isinstance(present, tuple) and len(present) == len(recorded)
        rows = present if matching else (None,) * len(recorded)
        return tuple(like(p, r) for p, r in zip(rows, recorded, strict=True))
    if isinstance(recorded, (dict, list, set)) or isinstance(present, bytearray):
        return into(copy.copy(present), recorded, fresh=True)
    return recorded


def into(present: Any, recorded: Any, fresh: bool = False) -> Any:
    """Put the recorded value into `present` if it is of that kind, since others may refer to it;
    returns the object to use from now on. `fresh`: what is inside is made anew: there may be
    another object than was recorded, such as the batch."""
    kind = type(present)
    if isinstance(recorded, torch.Tensor):
        fits = kind is torch.Tensor and not present.requires_grad
        if fits and (present.shape, present.dtype) == (recorded.shape, recorded.dtype):
            with torch.no_grad():
                return present.copy_(recorded)
        return like(present, recorded)
    numpy = sys.modules.get("numpy")
    if numpy is not None and kind is numpy.ndarray and isinstance(recorded, kind):
        # assigned, a value of another type would be rounded to the present one's
        alike = (present.shape, present.dtype) == (recorded.shape, recorded.dtype)
        if not alike or not present.flags.writeable:
            return recorded
        present[...] = recorded
    elif isinstance(recorded, dict) and kind in _MAPPINGS:
        rows = {k: _item(present.get(k), v, fresh) for k, v in recorded.items()}
        present.clear()
        present.update(rows)
    elif isinstance(recorded, list) and kind in (list, deque):
        old = list(present)
        items = [_item(old[i] if i < len(old) else None, v, fresh) for i, v in enumerate(recorded)]
        present.clear()
        present.extend(items)
    elif isinstance(recorded, set) and kind is set:
        present.clear()
        present.update(recorded)
    elif kind is bytearray and isinstance(recorded, bytes):
        present[:] = recorded
    else:
        return like(present, recorded) if isinstance(recorded, tuple) else recorded
    return present


def _item(present: Any, recorded: Any, fresh: bool) -> Any:
    return like(present, recorded) if fresh else into(present, recorded)
