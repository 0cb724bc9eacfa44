"""The decorator around a framework's training function, for PyTorch. MindSpore has a loop of its
own (mindspore/train/model.py).

Frameworks find here, too, whatever the module of this name has elsewhere. What its own library
calls, and no framework does, can be imported and not be called.
"""

from __future__ import annotations

import functools
import inspect
import logging
import re
from collections.abc import Callable
from enum import Enum
from functools import wraps
from types import SimpleNamespace
from typing import Any, NoReturn, TypeVar

from taskd.adaptor.mindio import exceptions, frameworks, processor
from taskd.adaptor.mindio.controller_ttp.ttp_utils import (
    get_env_var_int_safely,
    input_ip_transform,
    is_valid_ipv4,
    is_zero_ip,
)
from taskd.adaptor.mindio.enums import Action, ReportState
from taskd.adaptor.mindio.framework_ttp import functions
from taskd.adaptor.mindio.framework_ttp.functions import *
from taskd.adaptor.mindio.processor import Processor
from taskd.adaptor.mindio.utils.uce_utils import (
    get_l2_hbm_error_time,
    get_update_start_end_time,
)

log = logging.getLogger("taskd.worker")
ttp_logger = SimpleNamespace(LOGGER=log)

T = TypeVar("T")


def tft_exception_handler(func: Callable[..., T]) -> Callable[..., T]:
    """Decorate a training function: after a fault it waits for the repair and is called again, with
    the same arguments. Handlers get the positional ones as `args`, a list in which they may put
    others, unless tft_set_step_args has set something else."""

    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> T:
        me = processor.current()
        if me is None:
            return func(*args, **kwargs)
        given = list(args)
        if not me.handlers.args_set:
            me.handlers.args = given
        while True:
            try:
                result = func(*given, **kwargs)
                me.finish()
                return result
            except Exception as error:
                _await_repair(me, error)

    return wrapper


def _await_repair(me: Processor, error: Exception) -> None:
    """Report `error` and wait until the training function may be called again; otherwise raises
    it."""
    state, code = exceptions.meaning(error)
    if state is ReportState.RS_UNKNOWN and me.explained(error):
        state = ReportState.RS_NORMAL
    log.warning("rank %d: %s: %s: %s", me.agent.rank, state.name, type(error).__name__, error)
    if state is ReportState.RS_UNKNOWN:
        me.report(state, f"{type(error).__name__}: {error}")
        raise error
    me.report(state, code, str(error))
    if me.wait_for_action() is Action.EXIT:
        raise error
    # what the failed step has allocated hangs on it
    error.__traceback__ = None
    frameworks.free_memory()


# -- devices and addresses -------------------------------------------------------------------------


def get_device() -> int | None:
    """The index of this process's accelerator; None without one."""
    return frameworks.device()


def set_device() -> None:
    """Choose it in the calling thread."""
    frameworks.choose_device()


def get_stream() -> Any:
    """A stream of its own for work beside the training; None without an accelerator."""
    return frameworks.stream()


def check_pytorch_version() -> bool:
    """Whether the groups of this torch can be made again."""
    return True


def handle_l2_hbm_error(err_str: str) -> str:
    """Whether `err_str` reports failed memory, and whether a repair can restore what it held, in
    words: "OTHER", "HBM MULTI BIT ECC can repair", "HBM MULTI BIT ECC can't repair"."""
    if exceptions.HBM not in err_str:
        return "OTHER"
    can = "can" if exceptions.repairable(err_str) else "can't"
    return f"{exceptions.HBM} {can} repair"


def is_valid_ip(ip_str: str) -> bool:
    return is_valid_ipv4(ip_str)


def is_loopback_address(ip: str) -> bool:
    return re.fullmatch(r"127\.0*\.0*\.0*1", ip) is not None


def get_local_ip(master_ip: str, local_ip: str) -> str:
    """`local_ip`: ranks reach the controller by their agent, from whatever address."""
    return local_ip


# -- what the library behind the interface calls ---------------------------------------------------


class PauseType(Enum):
    PAUSE = 1
    RAISE = 2


class SaveHandler:
    """Keeps handlers in other implementations; here taskd.adaptor.mindio.handlers does."""

    def __init__(self) -> None:
        _refuse("SaveHandler")


_INTERNAL = {
    "change_timeout": "timeout",
    "clean_callback": "",
    "continue_callback": "",
    "execute_rebuild_group": "fault_ranks, repair_id",
    "exit_callback": "",
    "exit_proc_thread": "",
    "launch_tcp_store_client": "url, save_rank=-1, world_size=-1",
    "launch_tcp_store_server": "url, world_size",
    "notify_stop_callback_return": "",
    "pause_callback": "pause_step, hot_switch",
    "rename_callback": "",
    "repair_callback": "repair_args",
    "rollback_callback": "rollback_args",
    "save_checkpoint_callback": "step, repairId, optimidxs, ranks",
    "save_data_thread": "",
    "set_processor_callback": "",
    "set_zit_processor_callback": "",
    "stop_callback": "",
    "subprocess_handler_close": "self, death_sig=None",
    "wrap_exit": "",
    "zit_downgrade_rebuild_callback": "comm_group_idx, comm_groups, repair_id, zit_param",
    "zit_upgrade_rebuild_callback": "rank_list, repair_id, zit_param",
    "zit_upgrade_repair_callback": "repair_args",
    "zit_upgrade_rollback_callback": "rollback_args",
}


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name not in _INTERNAL:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refusing(*args: Any, **kwargs: Any) -> NoReturn:
        _refuse(name)

    refusing.__name__ = refusing.__qualname__ = name
    parameters = [
        inspect.Parameter(
            given.partition("=")[0],
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=_DEFAULTS.get(given.partition("=")[2], inspect.Parameter.empty),
        )
        for given in _INTERNAL[name].split(", ")
        if given
    ]
    refusing.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return refusing


_DEFAULTS = {"-1": -1, "None": None}


def _refuse(name: str) -> NoReturn:
    raise NotImplementedError(
        f"{name}: mindio_ttp's own library calls this; taskd calls the handlers that are"
        " registered, and nothing in between"
    )


__all__ = [
    *functions.__all__,
    *_INTERNAL,
    "Callable",
    "Enum",
    "PauseType",
    "SaveHandler",
    "check_pytorch_version",
    "get_device",
    "get_env_var_int_safely",
    "get_l2_hbm_error_time",
    "get_local_ip",
    "get_stream",
    "get_update_start_end_time",
    "handle_l2_hbm_error",
    "input_ip_transform",
    "is_loopback_address",
    "is_valid_ip",
    "is_zero_ip",
    "set_device",
    "tft_exception_handler",
    "ttp_logger",
    "wraps",
]
