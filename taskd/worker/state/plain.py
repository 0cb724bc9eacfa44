"""Encodes values of a training script as bytes and decodes them, bit for bit, without executing
what is read.

Covers what a state_dict() or a param_group contains: None, bool, int, float, complex, str, bytes,
list, tuple, dict, set and their well-known subclasses, tensors, NumPy arrays and scalars, torch's
dtypes, devices and sizes. Anything else raises an `Unrecordable` that names its place, at `protect`
and not when the job needs the record.
"""

from __future__ import annotations

import collections
import contextlib
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import torch

MAX_DEPTH = 100  # of nested containers; a state_dict has two or three levels


class Unrecordable(TypeError):
    """A value that cannot be rebuilt from bytes; the text names its place and type."""


class Unreadable(ValueError):
    """These bytes are not what `encode` makes."""


# idle ones, each with a buffer: to make one costs more than to pack a small value. One that has
# failed is not used again
_packers: collections.deque[msgpack.Packer] = collections.deque(maxlen=4)
LARGE = 1 << 20  # bytes; a buffer of that many is not kept


def encode(value: Any) -> bytes:
    """Encode `value`. Raises Unrecordable."""
    try:
        packer = _packers.pop()
    except IndexError:
        packer = msgpack.Packer(**_OPTIONS)
    try:
        packed: bytes = packer.pack(value)
        if len(packed) < LARGE:
            _packers.append(packer)
        return packed
    except Unrecordable:
        raise Unrecordable(_where(value)) from None
    except (ValueError, RecursionError, OverflowError) as error:
        raise Unrecordable(f"it is nested too deeply, or larger than 4 GiB ({error})") from None


def decode(data: bytes | memoryview) -> Any:
    """Decode what `encode` returned, with tensors on the CPU. Raises Unreadable."""
    try:
        return _unpack(data)
    except Unreadable:
        raise
    # msgpack raises a dozen kinds for hostile input, torch and numpy theirs
    except Exception as error:
        raise Unreadable(f"not a value of taskd: {type(error).__name__}: {error}") from None


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: Any) -> torch.dtype:
    """The dtype of that name. Raises Unreadable."""
    found = getattr(torch, name, None) if isinstance(name, str) else None
    if not isinstance(found, torch.dtype):
        raise Unreadable(f"{name!r} is not a torch dtype")
    return found


Described = tuple[str, tuple[int, ...], tuple[int, ...]]  # dtype, shape, strides


def flat(tensor: torch.Tensor) -> tuple[Described, torch.Tensor]:
    """A tensor's description and its memory as bytes on the CPU; if it is not dense or not on the
    CPU, those of a copy."""
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_quantized or type(tensor) not in _TENSORS:
        raise Unrecordable(f"a {type(tensor).__name__} of layout {tensor.layout}")
    tensor = tensor.cpu().resolve_conj().resolve_neg()
    if not is_dense(tensor):
        tensor = tensor.contiguous()
    row = torch.as_strided(tensor, (tensor.numel(),), (1,)).view(torch.uint8)
    return (dtype_name(tensor.dtype), tuple(tensor.shape), tensor.stride()), row


def tensor_bytes(tensor: torch.Tensor) -> tuple[Described, memoryview]:
    """The same, the memory as a buffer."""
    described, row = flat(tensor)
    return described, memoryview(row.numpy() if row.numel() else b"")  # type: ignore[arg-type]


def tensor_of(dtype: Any, shape: Any, stride: Any, memory: bytes | memoryview) -> torch.Tensor:
    """Make a tensor with its own memory. Raises Unreadable if the sizes do not match."""
    kind = dtype_of(dtype)
    if not (_whole(shape) and _whole(stride) and len(shape) == len(stride)):
        raise Unreadable(f"shape {shape!r} with strides {stride!r}")
    count = 1
    for size in shape:
        count *= size
    if count * kind.itemsize != len(memory):
        raise Unreadable(f"{len(memory)} bytes for a tensor of {count} x {kind}")
    if count == 0:
        return torch.empty(shape, dtype=kind)
    if 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True)) != count:
        raise Unreadable(f"strides {stride!r} do not fit shape {shape!r}")
    return torch.frombuffer(bytearray(memory), dtype=kind).as_strided(shape, stride)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether every element between the tensor's first and last belongs to it exactly once."""
    reach = 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return (
        tensor.numel() == 0
        or (0 not in tensor.stride() and reach == tensor.numel())
        or tensor.is_contiguous()
    )


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal bit for bit, whatever the order of keys, and of a tensor's
    elements in memory."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.dtype == b.dtype and encode(a.contiguous()) == encode(b.contiguous())
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(same, a, b))
    return encode(a) == encode(b)


def _whole(sizes: Any) -> bool:
    return isinstance(sizes, (list, tuple)) and all(
        type(s) is int and 0 <= s < 1 << 48 for s in sizes
    )


# -- one code for each kind of value that msgpack does not know ------------------------------------

_TENSORS = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_TUPLE, _INT, _SET, _FROZEN, _ORDERED, _COUNTER, _DEQUE, _COMPLEX = range(1, 9)
_ANNOTATED = 9  # an OrderedDict with attributes
_TENSOR, _ARRAY, _SCALAR, _DTYPE, _DEVICE, _SIZE, _PARAMETER = range(16, 23)


def _of_tensor(tensor: torch.Tensor) -> bytes:
    described, memory = tensor_bytes(tensor)
    return _pack((*described, bytes(memory)))


def _of_array(array: Any) -> bytes:
    if array.dtype.hasobject:
        raise Unrecordable
    return _pack((array.dtype.str, array.shape, array.tobytes()))


_CODES: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    tuple: (_TUPLE, lambda v: _pack(list(v))),
    int: (_INT, lambda v: v.to_bytes(v.bit_length() // 8 + 1, "little", signed=True)),
    set: (_SET, lambda v: _pack(list(v))),
    frozenset: (_FROZEN, lambda v: _pack(list(v))),
    collections.OrderedDict: (_ORDERED, lambda v: _pack(dict(v))),
    collections.Counter: (_COUNTER, lambda v: _pack(dict(v))),
    collections.deque: (_DEQUE, lambda v: _pack([list(v), v.maxlen])),
    complex: (_COMPLEX, lambda v: struct.pack("<dd", v.real, v.imag)),
    torch.Tensor: (_TENSOR, _of_tensor),
    torch.nn.Parameter: (_PARAMETER, lambda v: _of_tensor(v) + bytes([v.requires_grad])),
    torch.nn.Buffer: (_TENSOR, _of_tensor),
    torch.dtype: (_DTYPE, lambda v: dtype_name(v).encode()),
    torch.device: (_DEVICE, lambda v: str(v).encode()),
    torch.Size: (_SIZE, lambda v: _pack(list(v))),
}


def _annotated(value: Any) -> msgpack.ExtType | None:
    """A state_dict may have attributes that load_state_dict() reads (`_metadata`); those that
    cannot be recorded are left out."""
    kept = {}
    for name, attribute in vars(value).items():
        with contextlib.suppress(Unrecordable, ValueError, RecursionError, OverflowError):
            kept[name] = _pack(attribute)
    return msgpack.ExtType(_ANNOTATED, _pack([dict(value), kept])) if kept else None


def _annotated_of(data: bytes) -> Any:
    items, attributes = _unpack(data)
    found = collections.OrderedDict(items)
    vars(found).update({name: _unpack(value) for name, value in attributes.items()})
    return found


def _default(value: Any) -> msgpack.ExtType:
    if type(value) is collections.OrderedDict and vars(value):
        annotated = _annotated(value)
        if annotated is not None:
            return annotated
    found = _CODES.get(type(value))
    if found is not None:
        return msgpack.ExtType(found[0], found[1](value))
    numpy = sys.modules.get("numpy")  # a value cannot contain what is not loaded
    if numpy is not None and type(value) is numpy.ndarray:
        return msgpack.ExtType(_ARRAY, _of_array(value))
    if numpy is not None and isinstance(value, numpy.generic) and type(value).__module__ == "numpy":
        return msgpack.ExtType(_SCALAR, _of_array(numpy.asarray(value)))
    raise Unrecordable


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, **_OPTIONS)
    return packed


# strict_types: a tuple is not a list, and a subclass is a type of its own
_OPTIONS: dict[str, Any] = {
    "default": _default,
    "strict_types": True,
    "use_bin_type": True,
    "unicode_errors": "surrogatepass",
}


def _unpack(data: bytes | memoryview) -> Any:
    return msgpack.unpackb(
        data, ext_hook=_ext, raw=False, strict_map_key=False, unicode_errors="surrogatepass"
    )


def _array(data: bytes) -> Any:
    import numpy

    name, shape, memory = _unpack(data)
    kind = numpy.dtype(name)
    if kind.hasobject:
        raise Unreadable(f"an array of {name}")
    return numpy.frombuffer(bytearray(memory), dtype=kind).reshape(shape)


_READERS: dict[int, Callable[[bytes], Any]] = {
    _TUPLE: lambda d: tuple(_unpack(d)),
    _INT: lambda d: int.from_bytes(d, "little", signed=True),
    _SET: lambda d: set(_unpack(d)),
    _FROZEN: lambda d: frozenset(_unpack(d)),
    _ORDERED: lambda d: collections.OrderedDict(_unpack(d)),
    _ANNOTATED: _annotated_of,
    _COUNTER: lambda d: collections.Counter(_unpack(d)),
    _DEQUE: lambda d: collections.deque(*_unpack(d)),
    _COMPLEX: lambda d: complex(*struct.unpack("<dd", d)),
    _TENSOR: lambda d: tensor_of(*_unpack(d)),
    _PARAMETER: lambda d: torch.nn.Parameter(tensor_of(*_unpack(d[:-1])), bool(d[-1])),
    _ARRAY: _array,
    _SCALAR: lambda d: _array(d)[()],
    _DTYPE: lambda d: dtype_of(d.decode()),
    _DEVICE: lambda d: torch.device(d.decode()),
    _SIZE: lambda d: torch.Size(_unpack(d)),
}


def _ext(code: int, data: bytes) -> Any:
    reader = _READERS.get(code)
    if reader is None:
        raise Unreadable(f"a value of kind {code}, which this taskd does not know")
    return reader(data)


# -- the place of what cannot be recorded ----------------------------------------------------------


def _where(value: Any, path: str = "", depth: int = 0) -> str:
    """The first place in `value` that cannot be recorded."""
    for step, inside in _inside(value) if depth < MAX_DEPTH else ():
        try:
            _pack(inside)
        except Unrecordable:
            return _where(inside, path + step, depth + 1)
    kind = type(value)
    name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return f"a {name} at {path}" if path else f"a {name}"


def _inside(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
        yield from ((".keys()", key) for key in value)
    elif isinstance(value, (list, tuple, collections.deque)):
        yield from ((f"[{i}]", inner) for i, inner in enumerate(value))
