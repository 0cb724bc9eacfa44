"""Plain values among attributes, and whether they have changed since they were looked at."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import deque
from collections.abc import Collection, MutableMapping
from typing import Any

import torch

from taskd.worker.state import plain

# bytes of a tensor written to every record; a larger one belongs in a buffer
LARGEST = 1 << 16
ITEMS = 64  # of a container; a longer one is data or a history
ROW = 16  # of a list in a container
FEW = 4  # numbers of a tensor that are always looked at
ADDRESS = 1 << 32  # a whole number from here on may be the id of an object
PARAMETER = ".__dict__"  # ends the name of the attributes of a parameter
METRIC = 1 << 22  # bytes of a metric's state, which are copied at every step

_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_DTYPES = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
}
CONTAINERS = (list, tuple, dict, set, deque)
_COUNTS = {torch.bool, torch.int32, torch.int64, torch.float32, torch.float64}
_GROWING = (*CONTAINERS, str, bytes)
REMEDY = "a buffer (register_buffer)"
# why an attribute is not protected
MADE = (
    "was made in a step, and steps change it: a replaced rank would make another one. Make it"
    " before protect()"
)
VIEW = (
    "is a view of another one, and another view in the next step: after a repair it has memory of"
    " its own. Have it made where it is read"
)
BOTH = (
    "is changed by steps and as data are drawn: after a repair it may have another value. Keep the"
    " two apart"
)
BY_ID = (
    "has keys that are ids of objects, which have others in another process. Key it by name, or by"
    " the parameter's number"
)
OUTGROWN = (
    "has outgrown what is recorded in each step (64 items, 64 KiB): after a repair it may hold"
    " something else. Keep less of it, or give it to protect()"
)
Own = list[tuple[str, Any]]


class Space:
    """The attributes of an object, or the variables of a function, by name. `apart`: those that its
    author has not put there; `limit`: bytes of the tensors in one of them; `reached`: found from
    the script's variables. `moving`: the names of those that have changed; `drawn`: of those that
    change as data are drawn; `left`: none is recorded any more."""

    def __init__(
        self,
        attributes: MutableMapping[str, Any],
        apart: Collection[str] = (),
        limit: int = LARGEST,
        remedy: str = REMEDY,
        reached: bool = False,
    ) -> None:
        self.attributes, self.limit, self.remedy = attributes, limit, remedy
        self._apart = apart
        self.reached, self.left, self.moving = reached, False, set[str]()
        self.drawn: dict[str, Any] = {}
        self._owner: weakref.ref[Any] | None = None

    def own(self) -> Own:
        return [row for row in list(self.attributes.items()) if row[0] not in self._apart]

    def recorded(self) -> Own:
        if not self.reached:
            return self.own()
        return [row for row in self.own() if row[0] in self.moving and row[0] not in self.drawn]

    def belongs_to(self, owner: Any) -> None:
        """An object, which is not kept alive."""
        with contextlib.suppress(TypeError):  # of a class without weak references
            self._owner = weakref.ref(owner) if owner is not None else None

    def is_gone(self) -> bool:
        return self._owner is not None and self._owner() is None


class Look:
    """The plain ones of a space at one moment. Holds the objects, so that no other can get their
    identity."""

    def __init__(self, space: Space) -> None:
        self._space, self._count = space, len(space.attributes)
        self._rows = [
            (key, value, mark(value))
            for key, value in space.own()
            if is_plain(value, space.limit) or is_large(value)
        ]

    def holds(self, attributes: MutableMapping[str, Any]) -> bool:
        """Whether nothing has changed since."""
        for key, value, was in self._rows:
            now = attributes.get(key, self)
            if now is not value and (was is not None or not _is_equal(now, value)):
                return False
            if was is not None and was != mark(now):
                return False
        return len(attributes) == self._count

    def has(self, key: str, value: Any) -> bool:
        """Whether it was this very object."""
        return any(row[1] is value for row in self._rows if row[0] == key)

    def exchanged(self, before: Look) -> set[str]:
        """The names of what was another object before."""
        known = {key: value for key, value, _ in before._rows}
        return {key for key, value, _ in self._rows if known.get(key, value) is not value}

    def outgrown(self, before: Look) -> list[str]:
        """The names of containers and text that were plain before."""
        plain_now = {row[0] for row in self._rows}
        return [
            key
            for key, _, _ in before._rows
            if key not in plain_now and type(self._space.attributes.get(key)) in _GROWING
        ]

    def views(self) -> list[str]:
        """The names of tensors that lie in the memory of another one."""
        tensors = [row[:2] for row in self._rows if type(row[1]) is torch.Tensor]
        held = [(key, value) for key, value in tensors if value.layout is torch.strided]
        sizes = {value.untyped_storage().data_ptr(): 0 for _, value in held}
        for _, value in held:
            place = value.untyped_storage().data_ptr()
            sizes[place] = max(sizes[place], value.numel())
        return [k for k, v in held if v.numel() < sizes[v.untyped_storage().data_ptr()]]

    def by_id(self) -> list[str]:
        """The names of dicts whose keys look like the ids of objects."""
        return [
            key
            for key, value, _ in self._rows
            if type(value) is dict and any(type(k) is int and k >= ADDRESS for k in value)
        ]

    def swapped(self, before: Look) -> set[str]:
        """The names of containers in which tensors were others before."""
        known = {key: was for key, _, was in before._rows}
        return {key for key, _, now in self._rows if _is_swapped(now, known.get(key))}

    def equals(self, other: Look) -> bool:
        same = [row[0] for row in self._rows] == [row[0] for row in other._rows]
        return same and not self.differing(other)

    def differing(self, before: Look) -> set[str]:
        """The names of what has changed, come or gone since."""
        now, was = ({row[0]: row for row in look._rows} for look in (self, before))
        return (now.keys() ^ was.keys()) | {
            key for key in now.keys() & was.keys() if not _is_alike(now[key], was[key])
        }


def _is_alike(a: tuple[str, Any, Any], b: tuple[str, Any, Any]) -> bool:
    return (
        type(a[1]) is type(b[1])
        and bool(a[2] == b[2])
        and (a[1] is b[1] or (a[2] is None and _is_equal(a[1], b[1])))
    )


def _is_swapped(now: Any, before: Any) -> bool:
    if isinstance(now, _Same) and isinstance(before, _Same):
        return not now.is_of(before)
    if type(now) is dict and type(before) is dict:
        return any(_is_swapped(now[key], before[key]) for key in now.keys() & before.keys())
    if type(now) is list and type(before) is list:
        return any(map(_is_swapped, now, before))
    return False


class _Same:
    """A tensor at one moment, in a mark of a container."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor, self._version = tensor, _version(tensor)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, _Same) and self._tensor is other._tensor
        return same and self._version == other._version  # type: ignore[attr-defined]

    def is_of(self, other: _Same) -> bool:
        """Whether it is the same tensor, whatever its content."""
        return self._tensor is other._tensor

    __hash__ = None  # type: ignore[assignment]


def _version(tensor: torch.Tensor) -> Any:
    """Tensors that inference made count no versions: their content, if they are small."""
    if not tensor.is_inference():
        # a flag or a count is often written through .data, which counts no version
        few = tensor.numel() <= FEW and tensor.dtype in _COUNTS and tensor.device.type == "cpu"
        return (tensor._version, tensor.tolist()) if few else tensor._version
    return b"" if is_large(tensor) else plain.encode(tensor)


def _is_equal(a: Any, b: Any) -> bool:
    """Of values without a mark; a large array is equal to itself alone."""
    return type(a) is type(b) and not _is_array(a) and bool(a == b)


def mark(value: Any) -> Any:
    """A mark that shows in-place changes of an object; None if it has none."""
    kind = type(value)
    if kind is torch.Tensor:
        return _version(value)
    if kind is dict:
        return {key: _inner(v) for key, v in list(value.items())}
    rows = isinstance(value, tuple) and any(type(v) not in _SCALARS for v in value)
    if kind in (list, deque) or rows:
        return [_inner(v) for v in list(value)]
    if kind is set:
        return set(value)
    return value.tobytes() if _is_array(value) and not is_large(value) else None


def _inner(value: Any) -> Any:
    if type(value) is torch.Tensor:
        return _Same(value)
    if _is_array(value):
        return value.dtype.str, value.shape, value.tobytes()
    return list(value) if type(value) is list else value


def size(value: Any) -> int:
    """Bytes of the tensors in it, and of the arrays in a container."""
    kind = type(value)
    inner = value.values() if kind is dict else value if kind in CONTAINERS else ()
    inner = list(inner)  # another thread of the script may change it
    held = (value, *inner)
    tensors = sum(v.numel() * v.element_size() for v in held if type(v) is torch.Tensor)
    arrays: int = sum(v.nbytes for v in inner if _is_array(v))
    return tensors + arrays


def is_plain(value: Any, limit: int = LARGEST) -> bool:
    """`limit`: bytes of its tensors."""
    kind = type(value)
    if kind in (str, bytes):
        return len(value) <= LARGEST
    if kind in _SCALARS:
        return True
    if kind is torch.Tensor:
        return _is_tensor(value) and size(value) <= limit
    if kind in CONTAINERS or (issubclass(kind, tuple) and hasattr(kind, "_make")):
        if len(value) > ITEMS and limit <= LARGEST:
            return False
        # copies: another thread of the script may change it
        atoms = list(value) if kind in (set, dict) else ()
        inner = list(value.values()) if kind is dict else () if kind is set else list(value)
        return (
            all(type(v) in _SCALARS for v in atoms)
            and all(
                type(v) in _SCALARS or _is_tensor(v) or _is_row(v) or _is_numbers(v) for v in inner
            )
            and size(value) <= limit
        )
    if _is_array(value):
        return _is_numbers(value)
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(kind, numpy.generic) and value.dtype.kind in "biufc"


def is_object(value: Any) -> bool:
    """Whether it is no value: no number, text, tensor, array, nor a container."""
    kind = type(value)
    known = issubclass(kind, (*_SCALARS, *CONTAINERS, torch.Tensor))
    return not known and kind.__module__ != "numpy"


def _is_row(value: Any) -> bool:
    """A short list or tuple inside a container."""
    few = type(value) in (list, tuple) and len(value) <= ROW
    return few and all(type(v) in _SCALARS for v in value)


def _is_tensor(value: Any) -> bool:
    """Whether it is one that can be encoded."""
    return (
        type(value) is torch.Tensor
        and not (value.requires_grad or value.is_meta or value.is_quantized or value.is_nested)
        and value.layout is torch.strided
        and value.dtype in _DTYPES
    )


def _is_numbers(value: Any) -> bool:
    """Whether it is an array that can be encoded, of a size that can be copied in each step."""
    return _is_array(value) and not value.dtype.hasobject and not is_large(value)


def is_large(value: Any) -> bool:
    if type(value) is torch.Tensor:
        return not value.requires_grad and value.numel() * value.element_size() > LARGEST
    return _is_array(value) and value.nbytes > LARGEST


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray
