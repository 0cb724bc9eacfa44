"""What users add: patterns and kinds of device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import taskd.devices
from taskd.devices import Cpu, Cuda, Device, DeviceLost, Fault, FaultType, Pattern, of, register

CPU = Cpu(torch.device("cpu"))
ECC = Pattern(
    "XPU ECC", FaultType.MEMORY, codes=("XE42", "4711"), texts=("xpu: uncorrectable error at",)
)


class Xpu(Device):
    def leave_collectives(self):
        pass

    def synchronize(self):
        pass


@pytest.fixture(autouse=True)
def kinds(monkeypatch):
    monkeypatch.setattr(taskd.devices, "_kinds", dict(taskd.devices._kinds))
    monkeypatch.setattr(taskd.devices, "_from_users", set())


def test_a_pattern_is_looked_at_on_every_device():
    error = RuntimeError("xpu: uncorrectable error at 0x10")
    assert CPU.recognise(error) is None
    register(ECC)
    expected = Fault(FaultType.MEMORY, "XPU ECC", "RuntimeError: xpu: uncorrectable error at 0x10")
    assert CPU.recognise(error) == Cuda(torch.device("cuda", 0)).recognise(error) == expected


@pytest.mark.parametrize(
    "text",
    [
        "XE42: broken",
        "error code is 4711",
        "error_code=4711",
        "(error code: 4711)",
        "Error code [4711]",
    ],
)
def test_codes(text):
    register(ECC)
    assert CPU.recognise(RuntimeError(text)).name == "XPU ECC"


@pytest.mark.parametrize(
    "text", ["XE421", "4711 rows", "error code is 47112", "row 4711, error code is 1"]
)
def test_what_is_no_code(text):
    register(ECC)
    assert CPU.recognise(RuntimeError(text)) is None


def test_a_code_as_an_attribute():
    register(Pattern("X", FaultType.OTHER, codes=("xlib:7",)))
    error = RuntimeError("XLib has failed")
    assert CPU.recognise(error) is None
    error.error_code = 7
    assert CPU.recognise(error).name == "X"
    other = RuntimeError("another library has failed")
    other.error_code = 7
    assert CPU.recognise(other) is None


def test_a_pattern_goes_before_the_tables():
    closed = RuntimeError("[gloo/transport/tcp/pair.cc:1] Connection closed by peer")
    assert CPU.recognise(closed).name == "gloo connection"
    register(Pattern("switch port", FaultType.OTHER, texts=("Connection closed by peer",)))
    assert CPU.recognise(closed).name == "switch port"
    assert (
        CPU.recognise(RuntimeError("[gloo/transport/tcp/pair.cc:1] Read error")).name
        == "gloo connection"
    )


def test_the_first_of_several_counts():
    register(Pattern("one", FaultType.OTHER, texts=("the same text",)))
    register(Pattern("two", FaultType.NETWORK, texts=("the same text",)))
    assert CPU.recognise(RuntimeError("the same text")).name == "one"


def test_classes():
    class LinkDown(Exception):
        pass

    register(Pattern("link", FaultType.NETWORK, types=(LinkDown,)))
    assert CPU.recognise(LinkDown()) == Fault(FaultType.NETWORK, "link", "LinkDown")
    register(Pattern("odd link", FaultType.NETWORK, texts=("port 3 is down",), types=(OSError,)))
    assert CPU.recognise(OSError("port 3 is down")).name == "odd link"
    assert CPU.recognise(RuntimeError("port 3 is down")) is None


def test_no_fault_after_all():
    register(Pattern("our proxy", None, texts=("Connection closed by peer [proxy]",)))
    closed = "[gloo/transport/tcp/pair.cc:1] Connection closed by peer "
    assert CPU.recognise(RuntimeError(closed + "[proxy]")) is None
    assert CPU.recognise(RuntimeError(closed + "[10.0.0.1]")).name == "gloo connection"


def test_an_order_that_stopped_the_device():
    register(Pattern("halt", FaultType.OTHER, texts=("xpu was halted",), stopped=True))
    assert CPU.recognise(RuntimeError("xpu was halted")).stopped
    assert CPU.clean(CPU.recognise(RuntimeError("xpu was halted"))) == "nothing"


def test_registering_again_changes_nothing():
    register(ECC)
    register(
        Pattern(
            "XPU ECC",
            FaultType.MEMORY,
            codes=("XE42", "4711"),
            texts=("xpu: uncorrectable error at",),
        )
    )
    assert taskd.devices.faults.registered() == (ECC,)
    register("xpu", Xpu)
    register("xpu", Xpu)
    assert type(of(torch.device("xpu", 0))) is Xpu


def test_a_kind_of_device():
    with pytest.raises(
        NotImplementedError,
        match=r"'xpu': taskd can repair jobs on cpu, cuda, npu; taskd.devices.register\('xpu', ",
    ):
        of(torch.device("xpu"))
    register("xpu", Xpu)
    device = of(torch.device("xpu", 1))
    assert device.device == torch.device("xpu", 1) and not device.needs_abort
    device.abort()
    device.restart()
    device.will_overwrite([])
    assert device.clean(None) == "nothing" and device.resume_communicators() is False
    assert (
        device.recognise(RuntimeError("[gloo/transport/tcp/pair.cc:1] Read error")).name
        == "gloo connection"
    )
    register(ECC)
    with pytest.raises(DeviceLost, match="XPU ECC: xpu cannot tell which memory is damaged"):
        device.clean(device.recognise(RuntimeError("XE42")))


def test_an_adapter_of_ones_own_for_a_known_kind():
    class Careful(Cuda):
        pass

    register("cuda", Careful)
    assert type(of(torch.device("cuda", 0))) is Careful

    class Other(Cuda):
        pass

    with pytest.raises(
        ValueError, match="Careful is already registered for it; register one of them"
    ):
        register("cuda", Other)


class Half(Device):
    def synchronize(self):
        pass


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (("xpu", Half), TypeError, "the class must define leave_collectives"),
        (
            ("xpu", Xpu(torch.device("cpu"))),
            TypeError,
            "must be a subclass of taskd.devices.Device",
        ),
        (("xpu", object), TypeError, "must be a subclass of taskd.devices.Device"),
        (("xpu",), TypeError, "must be a subclass of taskd.devices.Device"),
        (("xpu:0", Xpu), ValueError, "like 'xpu', without an index"),
        (("", Xpu), ValueError, "must be a device type"),
        ((ECC, Xpu), TypeError, "takes no other argument"),
        ((Xpu,), TypeError, "a Pattern, or the name of a device type"),
    ],
)
def test_what_register_refuses(arguments, kind, says):
    with pytest.raises(kind, match=re.escape(says)):
        register(*arguments)


@pytest.mark.parametrize(
    ("fields", "kind", "says"),
    [
        ({}, ValueError, "nothing to match by; give codes, texts or types"),
        ({"name": " "}, ValueError, "the name must be non-empty text"),
        ({"type": 0, "codes": ("E1",)}, TypeError, "must be a FaultType, or None"),
        ({"codes": "E1"}, TypeError, "it must be a tuple"),
        ({"texts": ["link is down"]}, TypeError, "it must be a tuple"),
        ({"codes": ("",)}, ValueError, "must be 2 or more letters"),
        ({"codes": ("a b",)}, ValueError, "must be 2 or more letters"),
        ({"codes": (507053,)}, ValueError, "must be 2 or more letters"),
        ({"texts": ("",)}, ValueError, "at least 6 letters or digits"),
        ({"texts": ("ECC",)}, ValueError, "at least 6 letters or digits"),
        ({"texts": ("^……",)}, ValueError, "at least 6 letters or digits"),
        ({"types": (int,)}, TypeError, "classes of exceptions only"),
        ({"types": (RuntimeError("x"),)}, TypeError, "classes of exceptions only"),
        ({"types": (Exception,)}, ValueError, "with Exception among them, would match every error"),
        (
            {"types": (RuntimeError,)},
            ValueError,
            "with RuntimeError among them, would match every error",
        ),
    ],
)
def test_what_a_pattern_refuses(fields, kind, says):
    with pytest.raises(kind, match=re.escape(says)):
        Pattern(**{"name": "X", "type": FaultType.OTHER, **fields})


def test_importing_starts_no_device():
    program = (
        "import sys, torch, taskd.devices\n"
        "assert 'torch_npu' not in sys.modules and not torch.cuda.is_initialized()\n"
        "taskd.devices.of(torch.device('cuda', 0)); taskd.devices.of(torch.device('cpu'))\n"
        "assert 'torch_npu' not in sys.modules and not torch.cuda.is_initialized()\n"
    )
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(root)}, check=True
    )
