"""Functions for a program that decides about repairs, as MindCluster does: see callbacks.py."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from taskd.adaptor.mindio import callbacks, processor
from taskd.adaptor.mindio.callbacks import FAILURE, SUCCESS
from taskd.adaptor.mindio.framework_ttp import (
    tft_destroy_controller,
    tft_init_controller,
    tft_set_dp_group_info,
    tft_start_controller,
)

STRATEGIES = (
    *("retry", "recover", "dump", "exit"),
    *("downgrade", "upgrade", "migration", "continue"),
)
LONGEST = 3600  # seconds

log = logging.getLogger("taskd.worker")


def tft_register_mindx_callback(action: str, func: Callable[..., Any]) -> int:
    """Register one of the four callbacks: report_fault_ranks(ranks, codes),
    report_stop_complete(code, text, ranks), report_strategies(ranks, strategies) and
    report_result(code, text, ranks, strategy). `ranks`: a dict of rank to type of fault, 0 on-chip
    memory, 1 other, 2 network. Called with as many of these as the function takes, and only if all
    four are registered. Returns 0, or 1 if the action is none of these."""
    return callbacks.register(action, func)


def tft_notify_controller_stop_train(
    fault_ranks: Mapping[int, int], stop_type: str = "stop", timeout: int | None = None
) -> int:
    """Training has to stop because of `fault_ranks`. Returns 0: taskd has already stopped it, or
    finds the fault itself. Returns 1 for a pause, which needs `taskd pause`."""
    if not _faults(fault_ranks) or stop_type not in ("stop", "pause"):
        return _refused("tft_notify_controller_stop_train", f"{fault_ranks!r}, {stop_type!r}")
    if stop_type == "pause":
        log.error("tft_notify_controller_stop_train: to pause the job, use `taskd pause`")
        return FAILURE
    return _under_way("tft_notify_controller_stop_train")


def tft_notify_controller_on_global_rank(fault_ranks: Mapping[int, int], time: int = 1) -> int:
    """Report all faulty ranks, which taskd already knows. Returns 0, or 1 if no repair is under
    way."""
    if not _faults(fault_ranks) or type(time) is not int or not 0 < time <= LONGEST:
        return _refused("tft_notify_controller_on_global_rank", f"{fault_ranks!r}, {time!r}")
    return _under_way("tft_notify_controller_on_global_rank")


def tft_notify_controller_change_strategy(strategy: str, params: str = "") -> int:
    """Choose a strategy: the one being carried out (the last one offered), or dump or exit instead.
    Returns 0, or 1 if that is impossible."""
    me = processor.current()
    if strategy not in STRATEGIES or me is None:
        return _refused("tft_notify_controller_change_strategy", repr(strategy))
    return me.callbacks.choose(strategy)


def tft_notify_controller_prepare_action(
    action: str, fault_ranks: Mapping[int, int] | None = None
) -> int:
    """Prepare a hot switch. Returns 1: the manager moves a node to a standby as configured
    (hotswitch), not at the request of a rank's process."""
    return _refused("tft_notify_controller_prepare_action", repr(action))


def tft_notify_controller_dump() -> int:
    """Save a checkpoint by the framework, and end the job. Returns 0, or 1 without taskd's
    agent."""
    me = processor.current()
    if me is None:
        return _refused("tft_notify_controller_dump", "no agent")
    me.request("dump")
    return SUCCESS


def tft_query_high_availability_switch() -> bool:
    """Whether this job is protected by taskd."""
    me = processor.current()
    return me is not None and me.generation > 0


def _faults(ranks: Any) -> bool:
    return isinstance(ranks, dict) and all(
        type(r) is int and type(kind) is int and kind in (0, 1, 2) for r, kind in ranks.items()
    )


def _under_way(name: str) -> int:
    me = processor.current()
    if me is not None and me.callbacks.under_way:
        return SUCCESS
    return _refused(name, "no repair is under way")


def _refused(name: str, what: str) -> int:
    log.error("%s: refused: %s", name, what)
    return FAILURE


__all__ = [
    "tft_destroy_controller",
    "tft_init_controller",
    "tft_notify_controller_change_strategy",
    "tft_notify_controller_dump",
    "tft_notify_controller_on_global_rank",
    "tft_notify_controller_prepare_action",
    "tft_notify_controller_stop_train",
    "tft_query_high_availability_switch",
    "tft_register_mindx_callback",
    "tft_set_dp_group_info",
    "tft_start_controller",
]
