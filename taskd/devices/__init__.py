"""Code that depends on the device and its collective library: the meaning of errors, freeing a
blocked rank, lost memory.

torch_npu is imported when an NPU is used, and nothing here starts CUDA.
`of(device)` picks the adapter (`cpu.py`, `cuda.py`, `npu.py`; `device.py` defines the calls),
`register` adds an adapter, or a pattern to those of `tables.py`. See docs/devices.md.
"""

from __future__ import annotations

import inspect
import re
from typing import overload

import torch

from taskd.devices import faults
from taskd.devices.cpu import Cpu
from taskd.devices.cuda import Cuda
from taskd.devices.device import Device, DeviceLost
from taskd.devices.faults import Fault, FaultType, Pattern
from taskd.devices.npu import Npu

__all__ = [
    "Cpu",
    "Cuda",
    "Device",
    "DeviceLost",
    "Fault",
    "FaultType",
    "Npu",
    "Pattern",
    "of",
    "register",
]

_kinds: dict[str, type[Device]] = {"cpu": Cpu, "cuda": Cuda, "npu": Npu}
_from_users: set[str] = set()


def of(device: torch.device) -> Device:
    """The adapter for tensors on a device.

    Args:
        device: The device of a tensor.

    Returns:
        A new adapter.

    Raises:
        NotImplementedError: The kind of device is unknown.

    Example:
        import torch
        from taskd import devices

        print(type(devices.of(torch.device("cpu"))))
    """
    if device.type not in _kinds:
        known = ", ".join(sorted(_kinds))
        raise NotImplementedError(
            f"device type {device.type!r}: taskd can repair jobs on {known};"
            f" taskd.devices.register({device.type!r}, ...) adds a kind"
        )
    return _kinds[device.type](device)


@overload
def register(item: Pattern) -> None: ...
@overload
def register(item: str, adapter: type[Device]) -> None: ...
def register(item: Pattern | str, adapter: type[Device] | None = None) -> None:
    """Add an error pattern, or a kind of device. Call it in the script before `protect`; a
    replacement runs the script too. Registering the same again changes nothing.
    docs/devices.md describes both.

    Args:
        item: A `Pattern`, which is tried before taskd's own on every device, in order of
            registration; or the name of a kind of device, as in `tensor.device.type`.
        adapter: With a name: a subclass of `Device`. It takes precedence over taskd's adapter for
            that name.

    Raises:
        TypeError: `item` or `adapter` has the wrong type, or the class is abstract.
        ValueError: The name is invalid, or another class is registered for it.

    Example:
        from taskd.devices import FaultType, Pattern, register

        register(Pattern("XPU ECC", FaultType.MEMORY, texts=("xpu: uncorrectable error at",)))
    """
    if isinstance(item, Pattern):
        if adapter is not None:
            raise TypeError(
                "register(pattern) takes no other argument; register a kind of device with"
                " register('xpu', Xpu)"
            )
        faults.add(item)
        return
    if not isinstance(item, str):
        raise TypeError(
            f"register({item!r}): a Pattern, or the name of a device type and a subclass of Device"
        )
    if not re.fullmatch(r"[a-z][a-z0-9_]*", item):
        raise ValueError(
            f"register({item!r}, ...): the name must be a device type as in tensor.device.type,"
            " like 'xpu', without an index"
        )
    if not (isinstance(adapter, type) and issubclass(adapter, Device)):
        raise TypeError(
            f"register({item!r}, {adapter!r}): the second argument must be a subclass of"
            " taskd.devices.Device"
        )
    if inspect.isabstract(adapter):
        missing = ", ".join(sorted(adapter.__abstractmethods__))
        raise TypeError(f"register({item!r}, {adapter.__name__}): the class must define {missing}")
    before = _kinds.get(item)
    if item in _from_users and before is not None and _name(before) != _name(adapter):
        raise ValueError(
            f"register({item!r}, {_name(adapter)}): {_name(before)} is already registered for it;"
            " register one of them"
        )
    _kinds[item] = adapter
    _from_users.add(item)


def _name(adapter: type[Device]) -> str:
    return f"{adapter.__module__}.{adapter.__qualname__}"
