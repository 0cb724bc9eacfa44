"""Runs device tasks of a rank whose framework repairs itself, by the framework's own functions.
Called in the training thread.

MindSpore's are found by name, so a version that lacks one is reported in the task's result
(tests/mindspore/test_contract.py compares them with MindSpore's sources). With torch,
taskd.devices' adapters are used, including those that the script has registered.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

from taskd.worker.repair.device_tasks import Tested

# as they are imported; the second place of one is its older one, which newer versions deprecate
SWITCH_NICS = ("mindspore.communication.management._comm_switch_nic",)
STRESS_TEST = ("mindspore.tools.stress_detect", "mindspore.utils.stress_detect")


def device() -> Tested:
    return _MindSpore() if "mindspore" in sys.modules else _Torch()


class _MindSpore:
    def switch_nics(self, ranks: Sequence[int], backup: Sequence[bool]) -> bool:
        return bool(_function(SWITCH_NICS)(list(ranks), list(backup)))

    def stress_test(self, test: str) -> int:
        # the tests of links are named after the vendor's links
        return int(_function(STRESS_TEST)("aic" if test == "aic" else "hccs"))


def _function(places: Sequence[str]) -> Callable[..., Any]:
    for place in places:
        module, _, name = place.rpartition(".")
        try:
            found: Callable[..., Any] = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue
        return found
    raise NotImplementedError(f"not possible: this MindSpore has no {' or '.join(places)}")


class _Torch:
    def switch_nics(self, ranks: Sequence[int], backup: Sequence[bool]) -> bool:
        return _adapter().switch_nics(ranks, backup)

    def stress_test(self, test: Any) -> int:
        return _adapter().stress_test(test)


def _adapter() -> Tested:
    """The one for the device that this process uses."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise NotImplementedError("not possible: this rank has loaded neither MindSpore nor torch")
    from taskd import devices

    npu = getattr(torch, "npu", None)
    if npu is not None and npu.is_available():
        kind = "npu"
    else:
        kind = "cuda" if torch.cuda.is_initialized() else "cpu"
    return devices.of(torch.device(kind))
