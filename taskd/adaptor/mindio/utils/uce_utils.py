"""Notes when parameters were last changed, which may have used failed memory."""

from __future__ import annotations

import logging
import re
import sys
import time
from types import SimpleNamespace

ttp_logger = SimpleNamespace(LOGGER=logging.getLogger("taskd.worker"))

_last: dict[str, int] = {}


def tft_set_update_start_time(start_time: int | None = None) -> None:
    """Note when the update of the parameters began: `start_time`, in microseconds of the device's
    clock; None: now."""
    _last["start"] = get_event_time() if start_time is None else start_time


def tft_set_update_end_time(end_time: int | None = None) -> None:
    """Note when it ended, likewise."""
    _last["end"] = get_event_time() if end_time is None else end_time


def tft_can_do_uce_repair(
    hbm_error_time: int | None, start_time: int | None = None, end_time: int | None = None
) -> bool:
    """Whether the last update of the parameters began before the memory failed at `hbm_error_time`;
    otherwise it may have used wrong values, and so may other ranks. Missing times default to the
    noted ones; without any, or where it is not known when the memory failed (None), the answer is
    False."""
    start = _last.get("start") if start_time is None else start_time
    return start is not None and hbm_error_time is not None and hbm_error_time > start


def get_update_start_end_time() -> tuple[int | None, int | None]:
    """When the last update began and ended, in microseconds; None where that was not noted."""
    return _last.get("start"), _last.get("end")


def get_l2_hbm_error_time(log_string: str) -> int | None:
    """When memory failed, in microseconds, as torch_npu's exception says; None if it does not."""
    found = re.search(r"time us=(\d+)", log_string)
    return None if found is None else int(found[1])


def get_event_time() -> int:
    """Now, in microseconds of the device's clock."""
    if not hasattr(sys.modules.get("torch"), "npu"):
        return time.time_ns() // 1000
    from taskd.devices.npu import time_of_device

    return time_of_device()
