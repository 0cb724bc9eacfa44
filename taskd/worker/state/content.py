"""The content of a batch, or of the arguments of a call: what of it counts, and how it is read.

Tensors and arrays of any kind, numbers, text, and containers and objects of these, to any depth.
What a fingerprint cannot read is named. A large tensor is read at some places; the memory of a
device is not read, since that would wait for it.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import enum
import functools
import operator
import pathlib
import struct
import sys
import types
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from taskd.cython_api import batch
from taskd.cython_api.batch import Look

_PLAIN = (
    *(type(None), bool, int, float, complex, str, range, type(Ellipsis), enum.Enum, uuid.UUID),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal),
    *(pathlib.PurePath, torch.Size, torch.dtype, torch.device, torch.layout),
)
_SEQUENCES = (list, tuple, collections.deque, collections.UserList)
# what a step does to them is restored otherwise, or they do not change
_OPAQUE = (
    *(torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    *(torch.utils.data.DataLoader, torch.Generator, functools.partial, weakref.ref, type),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType),
)
_POINTER = struct.calcsize("P")


class Kinds(dict[type, int]):
    """type -> kind, see cython_api/batch.pyx. `objects`: of any other object its attributes are its
    content; else it has none."""

    def __init__(self, objects: bool) -> None:
        super().__init__()
        self._objects = objects

    def __missing__(self, kind: type) -> int:
        self[kind] = found = self._find(kind)
        return found

    def _find(self, kind: type) -> int:
        numpy = sys.modules.get("numpy")
        if issubclass(kind, torch.Tensor):
            return batch.TENSOR
        if numpy is not None and issubclass(kind, (numpy.ndarray, bytes, bytearray)):
            return batch.ARRAY
        numbers = (numpy.generic, numpy.dtype) if numpy is not None else (bytes,)
        if issubclass(kind, (*_PLAIN, *numbers)):
            return batch.PLAIN
        if issubclass(kind, Mapping):
            return batch.MAPPING
        if issubclass(kind, _SEQUENCES):
            return batch.SEQUENCE
        if issubclass(kind, (set, frozenset)):
            return batch.SET
        if issubclass(kind, _OPAQUE) or kind.__module__.startswith("taskd."):
            return batch.OPAQUE
        if _of_attributes(kind):
            return batch.OBJECT if self._objects else batch.OPAQUE
        return batch.UNKNOWN


def _of_attributes(kind: type) -> bool:
    """Whether its objects consist of attributes alone: no compiled code has room of its own."""
    if kind is types.SimpleNamespace:
        return True
    slots = 0
    for one in kind.__mro__[:-1]:
        own = sum(type(member) is types.MemberDescriptorType for member in vars(one).values())
        base = one.__base__ or object
        # beside its slots a class adds a dict and a list of weak references
        if one.__basicsize__ - base.__basicsize__ > _POINTER * (own + 2):
            return False
        slots += own
    return bool(kind.__dictoffset__ or slots)


BATCHES, ARGUMENTS = Kinds(objects=True), Kinds(objects=False)


def look(value: Any, kinds: Kinds = BATCHES) -> Look:
    return Look(value, kinds, _parts)


def fingerprint(value: Any) -> int:
    """Of a batch."""
    return look(value).print


def _parts(value: Any) -> Any:
    """See batch.Look."""
    if isinstance(value, torch.Tensor):
        return _memory(value)
    if isinstance(value, (bytes, bytearray)):
        return sys.modules["numpy"].frombuffer(value, "u1")
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return list(value.ravel()) if value.dtype.hasobject else numpy.ascontiguousarray(value)
    return attributes(value)


def attributes(value: Any) -> dict[str, Any]:
    """Those stored in an object, of which no code runs."""
    found = dict(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        for name, member in vars(kind).items():
            if type(member) is types.MemberDescriptorType and name[:2] != "__":
                try:
                    found.setdefault(name, member.__get__(value))
                except AttributeError:  # not assigned yet
                    continue
    return found


def _memory(tensor: torch.Tensor) -> torch.Tensor | list[Any] | None:
    """A tensor on the host as one with memory of its own, without gaps; or the tensors that it
    consists of; None: it has neither."""
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided:
        plain = tensor
    else:
        if (flatten := getattr(tensor, "__tensor_flatten__", None)) is not None:
            return [getattr(tensor, name) for name in flatten()[0]]
        with torch._C.DisableTorchFunctionSubclass():
            bare = tensor.detach()
            plain = bare if type(bare) is torch.Tensor else bare.as_subclass(torch.Tensor)
        if plain.layout is torch.sparse_coo:
            return [plain._indices(), plain._values()]
        if plain.layout in (torch.sparse_csr, torch.sparse_bsr):
            return [plain.crow_indices(), plain.col_indices(), plain.values()]
        if plain.layout in (torch.sparse_csc, torch.sparse_bsc):
            return [plain.ccol_indices(), plain.row_indices(), plain.values()]
    if plain.is_contiguous() and not plain.is_conj() and not plain.is_neg():
        return plain.int_repr() if plain.is_quantized else plain
    plain = plain.detach().resolve_conj().resolve_neg().contiguous()
    return plain if plain.layout is torch.strided and not plain.is_nested else None


@dataclass(frozen=True)
class Copy:
    """What a value holds, to be put back where it was."""

    holders: list[tuple[Any, tuple[list[Any], list[Any]]]]
    tensors: list[tuple[torch.Tensor, torch.Tensor]]
    arrays: list[tuple[Any, Any]]

    @staticmethod
    def of(seen: Look) -> Copy:
        return Copy(
            [(holder, _inside(holder)) for holder in seen.holders],
            [(tensor, tensor.detach().clone()) for tensor in seen.tensors],
            [(a, a[:] if isinstance(a, (bytes, bytearray)) else a.copy()) for a in seen.arrays],
        )

    def put(self) -> None:
        for holder, inside in self.holders:
            if not _is(_inside(holder), inside):
                _fill(holder, *inside)
        for tensor, copy in self.tensors:
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(copy)
        for array, copy in self.arrays:
            if isinstance(array, bytearray):
                array[:] = copy
            elif not isinstance(array, bytes) and array.flags.writeable:
                array[...] = copy


def _inside(holder: Any) -> tuple[list[Any], list[Any]]:
    """The names of what a container or an object holds, none in a sequence, and what it holds."""
    if isinstance(holder, (*_SEQUENCES, set, frozenset)):
        return [], list(holder)
    held = holder if isinstance(holder, Mapping) else attributes(holder)
    return list(held.keys()), list(held.values())


def _is(present: tuple[list[Any], list[Any]], kept: tuple[list[Any], list[Any]]) -> bool:
    """By identity: values may have a comparison of their own."""
    return all(
        len(now) == len(then) and all(map(operator.is_, now, then))
        for now, then in zip(present, kept, strict=True)
    )


def _fill(holder: Any, names: list[Any], values: list[Any]) -> None:
    rows = dict(zip(names, values, strict=False))
    if isinstance(holder, (dict, collections.UserDict)):
        holder.clear()
        holder.update(rows)
    elif isinstance(holder, set):
        holder.clear()
        holder.update(values)
    elif isinstance(holder, (list, collections.deque, collections.UserList)):
        holder.clear()
        holder.extend(values)
    elif not isinstance(holder, (tuple, frozenset, Mapping)):
        for name in attributes(holder).keys() - rows.keys():
            object.__delattr__(holder, name)
        for name, value in rows.items():
            object.__setattr__(holder, name, value)
