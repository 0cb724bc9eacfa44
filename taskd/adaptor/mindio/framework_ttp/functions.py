"""Functions for a training framework. Names, parameters and results are those of `mindio_ttp`.

In a process that taskd's agent did not start, the functions do nothing, and stderr says that
nothing is repaired.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

from taskd.adaptor.mindio import controller, exceptions, frameworks, handlers, processor
from taskd.adaptor.mindio.controller import MOST_RANKS
from taskd.adaptor.mindio.enums import Action, OptimizerType, RepairType, ReportState
from taskd.adaptor.mindio.replica_info import data_parallel, groups
from taskd.adaptor.mindio.updates import Stopped
from taskd.adaptor.mindio.utils.uce_utils import tft_can_do_uce_repair

Handler = Callable[..., Any]

log = logging.getLogger("taskd.worker")

# -- controller ------------------------------------------------------------------------------------


def tft_init_controller(
    rank: int,
    world_size: int,
    enable_local_copy: bool,
    enable_arf: bool = False,
    enable_zit: bool = False,
) -> None:
    """taskd's manager is the controller, wherever it runs. Checks the arguments. Raises
    ValueError."""
    controller.init(rank, world_size)


def tft_start_controller(
    bind_ip: str, port: int, enable_tls: bool = True, tls_info: str = ""
) -> None:
    """Nothing is started: ranks reach the manager by their agents. Where MindIO's would not start,
    with a wrong argument or before tft_init_controller, the process ends as it does there. Raises
    SystemExit(2)."""
    try:
        controller.start(bind_ip, port)
    except (ValueError, RuntimeError) as error:
        log.error("%s", error)
        raise SystemExit(2) from None


def tft_destroy_controller() -> None:
    controller.destroy()


# -- processor -------------------------------------------------------------------------------------


def tft_init_processor(
    rank: int,
    world_size: int,
    enable_local_copy: bool,
    enable_tls: bool = True,
    tls_info: str = "",
    enable_uce: bool = True,
    enable_arf: bool = False,
    enable_zit: bool = False,
) -> None:
    """Make this process a rank that its framework repairs. The strategies are those that the
    manager is configured with; ranks and agents talk by local sockets, which need no TLS.
    `enable_zit`: the framework can train elastically, by the handlers tft_register_zit_…. Raises
    ValueError, OSError."""
    if type(world_size) is not int or not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size is {world_size!r}; it must be 1 to {MOST_RANKS}")
    if type(rank) is not int or not 0 <= rank < world_size:
        raise ValueError(f"rank is {rank!r}; it must be 0 to {world_size - 1}")
    processor.make(rank, world_size, enable_zit is True)


def tft_start_processor(master_ip: str, port: int, local_ip: str = "") -> None:
    """Connect to this node's agent; the addresses are not needed. Raises ConnectionError."""
    if (me := processor.current()) is not None:
        me.start()


def tft_destroy_processor() -> None:
    """The training loop has ended. Returns once all ranks' loops have ended; raises RuntimeError
    ("FORCE STOP …") if the loop is rolled back instead."""
    if (me := processor.current()) is not None:
        me.finish()


def tft_is_reboot_node() -> bool:
    """Whether this process replaces one that has failed and has no state yet."""
    me = processor.current()
    return me is not None and me.replacement


def tft_get_reboot_type() -> str:
    """How it replaces it: "arf", in the place of a process that is gone."""
    return "arf"


# -- steps -----------------------------------------------------------------------------------------


def tft_start_updating_os(backup_step: int = -1) -> None:
    """The parameters are about to change. All ranks must have reached this call: put a barrier
    before it. Raises RuntimeError ("FORCE STOP …", "UCE ERROR …")."""
    if (me := processor.current()) is not None:
        me.begin_update()


def tft_start_copy_os() -> None:
    """The parameters are about to be copied on this rank; taskd uses no such copy."""


def tft_end_updating_os(step: int) -> None:
    """Update number `step`, 1 or more, is done. Raises RuntimeError ("FORCE STOP …",
    "UCE ERROR …"), ValueError."""
    if (me := processor.current()) is not None:
        me.end_update(step)


def tft_pause_train(cur_step: int) -> None:
    """Waits here, after `cur_step` updates, while a pause is ordered. Raises RuntimeError."""
    if (me := processor.current()) is not None:
        me.pause(cur_step)


def tft_set_step_args(args: Any) -> None:
    """Set the `args` that handlers get; with MindSpeed these stay the training function's."""
    if (me := processor.current()) is not None and not frameworks.version():
        me.handlers.args, me.handlers.args_set = args, True


def tft_set_optimizer_replica(rank: int, replica_info: list[dict[str, Any]]) -> None:
    """Report which ranks have the same optimizer state: see replica_info.py. Raises ValueError."""
    found = groups(rank, replica_info)
    if (me := processor.current()) is not None:
        me.set_replicas(found)


def tft_set_dp_group_info(rank: int, dp_rank_list: list[int]) -> None:
    """Report the data-parallel group of `rank`, for elastic training: its ranks leave and come back
    one by one, each with the ranks at its place in the other groups. Raises ValueError."""
    found = data_parallel(rank, dp_rank_list)
    if (me := processor.current()) is not None:
        me.data_parallel = found


def tft_reset_limit_step() -> None:
    """Updates may begin again; taskd allows them once the repair is done."""


# -- faults ----------------------------------------------------------------------------------------


def tft_register_exception_handler(
    fault_pattern: str, fault_type: str, fault_handle: Callable[[str], str]
) -> None:
    """See exceptions.register. Raises TypeError, ValueError."""
    exceptions.register(fault_pattern, fault_type, fault_handle)


def tft_report_error(error_type: int | ReportState, error_code: str = "") -> None:
    """The training thread has left the training; `error_type`: a ReportState or its value. Raises
    ValueError."""
    state = ReportState(getattr(error_type, "value", error_type))
    me = processor.current()
    if me is None:
        return
    # the caller handles the exception as it calls this
    explained = state is ReportState.RS_UNKNOWN and me.explained(sys.exc_info()[1])
    if not explained:
        me.report(state, str(error_code)[: exceptions.CODE])
    if state is ReportState.RS_UNKNOWN:
        me.stay_for_dump(explained)  # the caller ends the process
    if explained:
        raise Stopped


def tft_wait_next_action() -> int:
    """Wait for the repair: Action.RETRY: train on from `tft_get_repair_step()`; Action.EXIT: there
    is no repair."""
    me = processor.current()
    return Action.EXIT.value if me is None else me.wait_for_action().value


def tft_wait_repair_action() -> int:
    """The second half of the wait in other implementations: tft_wait_next_action has waited for all
    of it."""
    return Action.EXIT.value if processor.current() is None else Action.RETRY.value


def tft_get_repair_step() -> int:
    """The number of updates in the state that training resumes from; 0: unknown."""
    me = processor.current()
    return 0 if me is None else me.repair_step


def tft_get_repair_type() -> str:
    """ "retry", "recover", "dump" or "unknow", as MindIO spells it, which it is too where ranks
    leave or come back."""
    me = processor.current()
    known = me is not None and me.repair_type in ("retry", "recover", "dump")
    return me.repair_type if me is not None and known else "unknow"


def tft_report_load_ckpt_step(step: int) -> None:
    """Called by a repair handler of type RT_LOAD_CKPT or RT_LOAD_REBUILD: it has loaded the
    checkpoint that was saved after `step` updates. Raises ValueError."""
    if type(step) is not int or step < 1:
        raise ValueError(f"tft_report_load_ckpt_step: step is {step!r}; it must be 1 or more")
    if (me := processor.current()) is not None:
        me.loaded = step


# -- handlers --------------------------------------------------------------------------------------


def _register(name: str, func: Handler, ctx: Any) -> None:
    if (me := processor.current()) is not None:
        me.handlers.register(name, func, ctx)
    elif not callable(func):
        raise TypeError(f"tft_register_{name}_handler: func must be a function")


def tft_register_stop_handler(func: Handler, ctx: Any = None) -> None:
    """func(args, ctx): make the training thread raise, by stopping its device."""
    _register(handlers.STOP, func, ctx)


def tft_register_clean_handler(func: Handler, ctx: Any = None) -> None:
    """func(is_uce_error, args, ctx): clean the device; returns 0, 1 (failed: the process is
    replaced) or 2 (the failed memory held nothing to restore)."""
    _register(handlers.CLEAN, func, ctx)


def tft_register_rebuild_group_handler(func: Handler, ctx: Any = None) -> None:
    """func(fault_ranks, args, ctx): make all groups anew; `fault_ranks` have new processes."""
    _register(handlers.REBUILD, func, ctx)


def tft_register_repair_handler(func: Handler, ctx: Any = None) -> None:
    """func(step, need_rebuild, error_ranks, repair_info, args, ctx): give or take state, or load a
    checkpoint and call tft_report_load_ckpt_step."""
    _register(handlers.REPAIR, func, ctx)


def tft_register_rollback_handler(func: Handler, ctx: Any = None) -> None:
    """func(step, args, ctx): bring everything else to the state after `step` updates."""
    _register(handlers.ROLLBACK, func, ctx)


def tft_register_save_ckpt_handler(func: Handler, ctx: Any = None) -> None:
    """func(step, save_info, args, ctx): save this rank's part of the last checkpoint."""
    _register(handlers.SAVE, func, ctx)


def tft_register_rename_handler(func: Handler, ctx: Any = None) -> None:
    """func(step, args), with MindSpore func(step, ctx): all parts are saved."""
    _register(handlers.RENAME, func, ctx)


def tft_register_exit_handler(func: Handler, ctx: Any = None) -> None:
    """func(ctx): called before this process ends because its launcher has."""
    _register(handlers.EXIT, func, ctx)


def tft_register_stream_sync_handler(func: Handler, ctx: Any = None) -> None:
    """func(): wait for the device's work, before a pause."""
    _register(handlers.SYNC, func, ctx)


def tft_register_zit_downgrade_rebuild_handler(func: Handler, ctx: Any = None) -> None:
    """func(dp_ranks, ranks, args, params): make groups of `ranks`, which are left, and of
    `dp_ranks`, which are left of this rank's data-parallel group; spread the micro-batches of a
    step over the latter; bring the loop to the state after tft_get_repair_step() updates. `params`:
    '{"scale-in-strategy": "DP"}'."""
    _register("zit_downgrade_rebuild", func, ctx)


def tft_register_zit_upgrade_rebuild_handler(func: Handler, ctx: Any = None) -> None:
    """func(new_ranks, args, params): ranks are back, with new processes. Make the groups of all.
    `params` is '{"scale-out-strategy": "DP"}'."""
    _register("zit_upgrade_rebuild", func, ctx)


def tft_register_zit_upgrade_repair_handler(func: Handler, ctx: Any = None) -> None:
    """func(step, need_rebuild, error_ranks, repair_info, args, params): give state to ranks that
    are back, or take it."""
    _register("zit_upgrade_repair", func, ctx)


def tft_register_zit_upgrade_rollback_handler(func: Handler, ctx: Any = None) -> None:
    """func(step, args, params): spread the micro-batches over all ranks again, and bring everything
    else to the state after `step` updates."""
    _register("zit_upgrade_rollback", func, ctx)


def tft_register_decrypt_handler(decryptor: Callable[[str], str]) -> None:
    """Of TLS keys, which local sockets do not need: never called. Raises TypeError."""
    if not callable(decryptor):
        raise TypeError("tft_register_decrypt_handler: decryptor must be a function")


def set_mindio_export_version(framework_type: str) -> None:
    """The framework: "MindSpeed" or "MindSpeed-LLM". Raises ValueError."""
    frameworks.set_version(framework_type)


def get_mindio_export_version() -> str:
    """What was given to set_mindio_export_version; "" before."""
    return frameworks.version()


__all__ = [
    "Action",
    "OptimizerType",
    "RepairType",
    "ReportState",
    "get_mindio_export_version",
    "set_mindio_export_version",
    "tft_can_do_uce_repair",
    "tft_destroy_controller",
    "tft_destroy_processor",
    "tft_end_updating_os",
    "tft_get_reboot_type",
    "tft_get_repair_step",
    "tft_get_repair_type",
    "tft_init_controller",
    "tft_init_processor",
    "tft_is_reboot_node",
    "tft_pause_train",
    "tft_register_clean_handler",
    "tft_register_decrypt_handler",
    "tft_register_exception_handler",
    "tft_register_exit_handler",
    "tft_register_rebuild_group_handler",
    "tft_register_rename_handler",
    "tft_register_repair_handler",
    "tft_register_rollback_handler",
    "tft_register_save_ckpt_handler",
    "tft_register_stop_handler",
    "tft_register_stream_sync_handler",
    "tft_register_zit_downgrade_rebuild_handler",
    "tft_register_zit_upgrade_rebuild_handler",
    "tft_register_zit_upgrade_repair_handler",
    "tft_register_zit_upgrade_rollback_handler",
    "tft_report_error",
    "tft_report_load_ckpt_step",
    "tft_reset_limit_step",
    "tft_set_dp_group_info",
    "tft_set_optimizer_replica",
    "tft_set_step_args",
    "tft_start_controller",
    "tft_start_copy_os",
    "tft_start_processor",
    "tft_start_updating_os",
    "tft_wait_next_action",
    "tft_wait_repair_action",
]
