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
import fractions
import functools
import logging
import math
import operator
import pathlib
import struct
import sys
import types
import uuid
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch

from taskd import raised
from taskd.cython_api import batch
from taskd.cython_api.batch import Look
from taskd.worker.state.plain import is_dense
from taskd.worker.state.stored_attributes import attributes, put_attribute, stored

_PLAIN = (
    *(type(None), bool, int, float, complex, str, range, type(Ellipsis), uuid.UUID),
    *(datetime.timedelta, decimal.Decimal, fractions.Fraction, pathlib.PurePath),
    *(torch.Size, torch.dtype, torch.device, torch.layout),
)
# whose repr() may have an address in it
_NAMED = (enum.Enum, datetime.date, datetime.time)
_SEQUENCES = (list, tuple, collections.deque, collections.UserList)
# what a step does to them is restored otherwise, or they do not change
_OPAQUE = (
    *(torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
    *(torch.utils.data.DataLoader, torch.Generator, functools.partial, weakref.ref, type),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType),
    *(type(functools.lru_cache(len)), logging.Logger, torch.utils.data.Dataset),
)
_CHANGEABLE: tuple[Any, ...] = (collections.OrderedDict, dict, set, list, collections.deque)
LARGEST = 64 << 20  # bytes of an array that is copied
PART = 1 << 14  # elements of a tensor or array with gaps that are read
_POINTER = struct.calcsize("P")


class Kinds(dict[type, int]):
    """type -> kind, see cython_api/batch.pyx. `whole`: numbers, text and the attributes of any
    object are content. Else tensors and arrays are, and what holds them: the arguments of a call
    also have what differs in each process, or is restored otherwise."""

    tensor, layout = torch.Tensor, torch.strided

    @staticmethod
    def parts(value: Any) -> Any:
        """See batch.Look."""
        return _parts(value)

    def __init__(self, whole: bool) -> None:
        super().__init__()
        self.whole = whole

    def __missing__(self, kind: type) -> int:
        self[kind] = found = self._find(kind)
        return found

    def _find(self, kind: type) -> int:
        numpy = sys.modules.get("numpy")
        if issubclass(kind, torch.Tensor):
            state = issubclass(kind, torch.nn.Parameter) and not self.whole
            return batch.OPAQUE if state else batch.TENSOR
        if numpy is not None and issubclass(kind, numpy.ndarray):
            return batch.ARRAY
        if numpy is not None and issubclass(kind, (bytes, bytearray)):
            return batch.ARRAY if self.whole else batch.OPAQUE
        if issubclass(kind, _NAMED):
            return batch.NAMED if self.whole else batch.OPAQUE
        numbers = (numpy.generic, numpy.dtype) if numpy is not None else (bytes,)
        if issubclass(kind, (*_PLAIN, *numbers)):
            return batch.PLAIN if self.whole else batch.OPAQUE
        if issubclass(kind, Mapping):
            return batch.MAPPING
        if issubclass(kind, _SEQUENCES):
            return batch.SEQUENCE
        if issubclass(kind, (set, frozenset)):
            return batch.SET if self.whole else batch.OPAQUE
        if issubclass(kind, _OPAQUE) or kind.__module__.startswith("taskd."):
            return batch.OPAQUE
        if _of_attributes(kind):
            return batch.OBJECT if self.whole or is_dataclass(kind) else batch.OPAQUE
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


BATCHES, ARGUMENTS = Kinds(whole=True), Kinds(whole=False)


def look(value: Any, kinds: Kinds = BATCHES) -> Look:
    return Look(value, kinds)


def fingerprint(value: Any) -> int:
    """Of a batch."""
    return look(value).print


def _parts(value: Any) -> Any:
    """See batch.Look."""
    if isinstance(value, torch.Tensor):
        return _memory(value)
    if isinstance(value, (bytes, bytearray)):
        return sys.modules["numpy"].frombuffer(value, "u1")
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, _NAMED):
        return str(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.ndarray):
        return list(value.ravel()) if value.dtype.hasobject else _array(value)
    return _attributes(value)


def _array(value: Any) -> Any:
    """Without gaps; of a large one that has some, a part."""
    numpy = sys.modules["numpy"]
    value = value.view(numpy.ndarray)
    if value.flags.c_contiguous or value.flags.f_contiguous:
        return value if value.flags.c_contiguous else value.T
    return numpy.ascontiguousarray(value[_some(value.shape, value.strides)])


def _some(shape: Sequence[int], strides: Sequence[int]) -> tuple[slice, ...]:
    """Of a tensor or array with gaps: at most PART elements of it, none of them twice."""
    sizes = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
    steps = [1] * len(sizes)
    while math.prod(-(-n // step) for n, step in zip(sizes, steps, strict=True)) > PART:
        widest = max(range(len(sizes)), key=lambda i: sizes[i] / steps[i])
        steps[widest] *= 2
    return tuple(slice(0, n, step) for n, step in zip(sizes, steps, strict=True))


def _attributes(value: Any) -> dict[str, Any]:
    """But those that are computed once they are asked for."""
    found = dict(attributes(value))
    for name in list(found):
        if isinstance(getattr(type(value), name, None), functools.cached_property):
            del found[name]
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
    if plain.is_quantized:
        plain = plain.int_repr()
    if plain.is_conj() or plain.is_neg() or plain.is_nested or plain.layout is not torch.strided:
        plain = plain.detach().resolve_conj().resolve_neg().contiguous()
    if not is_dense(plain):
        plain = plain.detach()[_some(plain.shape, plain.stride())].contiguous()
    there = plain.untyped_storage().nbytes() - plain.storage_offset() * plain.element_size()
    size = plain.numel() * plain.element_size()
    return plain if size <= there and (plain.data_ptr() or not size) else None


@dataclass(frozen=True)
class Copy:
    """What a value holds, to be put back where it was."""

    holders: list[tuple[Any, tuple[list[Any], list[Any]]]]
    tensors: list[tuple[torch.Tensor, torch.Tensor]]
    arrays: list[tuple[Any, Any]]

    @staticmethod
    def of(seen: Look) -> Copy:
        tensors, arrays = [], []
        for tensor in seen.tensors:
            try:
                tensors.append((tensor, tensor.detach().clone()))
            except (RuntimeError, TypeError) as error:  # of a layout that has none
                raised.heed(error)
        for array in seen.arrays:
            if isinstance(array, bytearray):
                arrays.append((array, bytes(array)))
            elif not isinstance(array, bytes) and array.flags.writeable and array.nbytes <= LARGEST:
                arrays.append((array, array.copy()))
        return Copy([(holder, _inside(holder)) for holder in seen.holders], tensors, arrays)

    def put(self) -> None:
        """Put back what can be; who asks for it looks whether that is all."""
        for holder, inside in self.holders:
            if not _is(_inside(holder), inside):
                _fill(holder, *inside)
        for tensor, copy in self.tensors:
            if tensor.shape == copy.shape and not _equal(tensor, copy):
                with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                    tensor.copy_(copy)
        for array, copy in self.arrays:
            if isinstance(array, bytearray):
                array[:] = copy
            else:
                array[...] = copy


def _equal(tensor: torch.Tensor, copy: torch.Tensor) -> bool:
    """On the host: a device would be waited for."""
    if tensor.device.type != "cpu":
        return False
    try:
        return torch.equal(tensor.detach(), copy)
    except (RuntimeError, TypeError) as error:
        raised.heed(error)
        return False


def _inside(holder: Any) -> tuple[list[Any], list[Any]]:
    """The names of what a container or an object holds, none in a sequence, and what it holds."""
    if isinstance(holder, (*_SEQUENCES, set, frozenset)):
        return [], list(holder)
    held = holder if isinstance(holder, Mapping) else _attributes(holder)
    return list(held.keys()), list(held.values())


def _is(present: tuple[list[Any], list[Any]], kept: tuple[list[Any], list[Any]]) -> bool:
    """By identity: values may have a comparison of their own."""
    return all(
        len(now) == len(then) and all(map(operator.is_, now, then))
        for now, then in zip(present, kept, strict=True)
    )


def _fill(holder: Any, names: list[Any], values: list[Any]) -> None:
    """Without the container's own methods, which may refuse, or do more."""
    if isinstance(holder, (collections.UserDict, collections.UserList)):
        holder = holder.data
    kind = next((kind for kind in _CHANGEABLE if isinstance(holder, kind)), None)
    if kind is not None:
        kind.clear(holder)
        if issubclass(kind, dict):
            kind.update(holder, zip(names, values, strict=True))
        else:
            (set.update if kind is set else kind.extend)(holder, values)
    elif isinstance(holder, MutableMapping):  # of a library
        for name in holder.keys() - set(names):
            del holder[name]
        for name, value in zip(names, values, strict=True):
            if holder.get(name) is not value:
                holder[name] = value
    elif not isinstance(holder, (tuple, frozenset, Mapping)):
        for name in _attributes(holder).keys() - set(names):
            stored(holder).pop(name, None)
        for name, value in zip(names, values, strict=True):
            put_attribute(holder, name, value)
