"""A training script that knows mindio_ttp and nothing of taskd, built as MindSpeed-LLM uses the
interface, name by name and in its order: a decorator around `train`, replica groups of a
distributed optimizer, and handlers for stop, clean, groups, repair, rollback, the last checkpoint
and precision errors.

pretrain.py MODEL_PARALLEL REPLICAS STEPS OUTPUT [FAULT RANK STEP]..., with RANK a number or
"all", and FAULT kill, poison, cut, raise, precision (it asks for the checkpoint of step 5), early
or late (HBM fails before or after an update has begun). SAVE_INTERVAL: updates between two
checkpoints, 0: none. LOAD_FAULT: a fault on rank 2 while it first loads one. ZIT=0: without elastic
training. PACE: seconds before each step, until there is a file "hurry" in OUTPUT.
DIES_GROWING: ranks that are back die while all make their groups. A file "raise-RANK" in OUTPUT:
that rank raises, once.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import gloo_device as device
import lanes
import torch
import torch.distributed as dist
from lanes import MODEL, OPTIMIZER, SCHEDULER, TOTAL
from mindio_ttp.framework_ttp import (
    OptimizerType,
    RepairType,
    set_mindio_export_version,
    tft_exception_handler,
    tft_init_controller,
    tft_init_processor,
    tft_is_reboot_node,
    tft_pause_train,
    tft_register_clean_handler,
    tft_register_exception_handler,
    tft_register_rebuild_group_handler,
    tft_register_rename_handler,
    tft_register_repair_handler,
    tft_register_rollback_handler,
    tft_register_save_ckpt_handler,
    tft_register_stop_handler,
    tft_register_stream_sync_handler,
    tft_register_zit_downgrade_rebuild_handler,
    tft_register_zit_upgrade_rebuild_handler,
    tft_register_zit_upgrade_repair_handler,
    tft_register_zit_upgrade_rollback_handler,
    tft_set_dp_group_info,
    tft_set_optimizer_replica,
    tft_start_controller,
    tft_start_processor,
)
from mindio_ttp.framework_ttp.ttp_decorator import (
    get_device,
    get_mindio_export_version,
    tft_get_repair_type,
    tft_report_load_ckpt_step,
)
from sharded import (
    DP_RANKS,
    MP,
    RANK,
    REPLICAS,
    WIDTH,
    WORLD,
    DistributedAdam,
    Model,
    Scheduler,
    make_groups,
    new_group,
)

BATCH = 8

STEPS, OUTPUT = int(sys.argv[3]), Path(sys.argv[4])
FAULTS = list(zip(sys.argv[5::3], sys.argv[6::3], sys.argv[7::3], strict=True))
SAVE_INTERVAL = int(os.environ.get("SAVE_INTERVAL", "0"))
PACE, ZIT = float(os.environ.get("PACE", "0")), os.environ.get("ZIT", "1") == "1"
LOADING = OUTPUT / "checkpoints"
LATEST = LOADING / "latest_checkpointed_iteration.txt"

rebooted = False
retry_step: int | None = None  # that a precision error asks for


# -- what the framework implements -----------------------------------------------------------------


def stop(args: Any, ctx: Any) -> None:
    assert get_device() is None and get_mindio_export_version() == "MindSpeed-LLM"
    device.stop_device()


def clean(is_uce_error: bool, args: Any, ctx: Any) -> int:
    assert tft_get_repair_type() in ("retry", "recover", "dump", "unknow")
    if is_uce_error:
        args[MODEL] = args[OPTIMIZER] = None
    return 0


def rebuild_groups(fault_ranks: list[int], args: Any, ctx: Any) -> None:
    global rebooted
    rebooted = False
    if dist.is_initialized():  # not where the last attempt to make them has failed
        dist.destroy_process_group()
    device.forget_links()
    make_groups()


def repair(
    step: int,
    need_rebuild: bool,
    error_ranks: list[int],
    repair_info: dict[str, Any],
    args: Any,
    ctx: Any,
) -> None:
    kind = repair_info["repair_type"]
    if kind in (RepairType.RT_LOAD_CKPT.value, RepairType.RT_LOAD_REBUILD.value):
        assert need_rebuild is (kind == RepairType.RT_LOAD_REBUILD.value)
        assert repair_info["src"] == repair_info["dst"] == error_ranks == [RANK]
        assert repair_info["rank_list"] == list(range(WORLD))
        load_checkpoint(args, need_rebuild)
        return
    if repair_info["src"] == repair_info["dst"]:
        return
    ranks = sorted(repair_info["rank_list"])
    with device.making_groups():
        group = new_group(ranks)
    if need_rebuild:
        args[MODEL] = model = Model()
        args[OPTIMIZER] = DistributedAdam(model)
    optimizer = args[OPTIMIZER]
    pairs = zip(repair_info["type"], repair_info["src"], repair_info["dst"], strict=True)
    for optimizer_kind, source, destination in pairs:
        assert optimizer_kind == OptimizerType.ATTENTION.value
        for tensor in optimizer.state:
            if kind == RepairType.RT_SEND.value:
                dist.send(tensor, destination, group=group)
            else:
                assert kind in (
                    RepairType.RT_RECV_REPAIR.value,
                    RepairType.RT_UCE_HIGHLEVEL.value,
                )
                dist.recv(tensor, source, group=group)


def rollback(step: int, args: Any, ctx: Any) -> None:
    args[OPTIMIZER].steps = args[SCHEDULER].steps = step
    args[OPTIMIZER].gather()


def load_checkpoint(args: Any, need_rebuild: bool) -> None:
    """As MindSpeed-LLM does: where a step is asked for and there, the file that names the newest
    one is rewritten, by rank 0; then all load what that file names."""
    global retry_step
    if retry_step is not None and LATEST.exists() and (LOADING / str(retry_step)).exists():
        if RANK == 0:
            LATEST.write_text(str(retry_step))
        dist.barrier()
        retry_step = None
    fault, mark = os.environ.get("LOAD_FAULT", ""), OUTPUT / "load-fault"
    if fault and RANK == 2 and not mark.exists():
        mark.touch()
        strike(fault, args[OPTIMIZER])
    args[SCHEDULER] = Scheduler()
    dist.barrier()
    step = int(LATEST.read_text())
    if need_rebuild:
        args[MODEL] = model = Model()
        args[OPTIMIZER] = DistributedAdam(model)
    optimizer = args[OPTIMIZER]
    loaded = torch.load(LOADING / str(step) / part_of(optimizer))
    for tensor, value in zip(optimizer.state, loaded["state"], strict=True):
        tensor.copy_(value)
    optimizer.steps = args[SCHEDULER].steps = step
    tft_report_load_ckpt_step(step)


def part_of(optimizer: DistributedAdam) -> str:
    return f"mp-{RANK % MP}-part-{optimizer.part}.pt"


def save_checkpoint(optimizer: DistributedAdam) -> None:
    """A periodic one, of all ranks; replicas write the same."""
    folder = LOADING / str(optimizer.steps)
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f"{RANK}.tmp"
    torch.save({"step": optimizer.steps, "state": optimizer.state}, temporary)
    temporary.rename(folder / part_of(optimizer))
    dist.barrier()
    if RANK == 0:
        (LOADING / "tmp").write_text(str(optimizer.steps))
        (LOADING / "tmp").rename(LATEST)


def precision_error(text: str) -> str:
    global retry_step
    if found := re.search(r"load ckpt step=(\d+)", text):
        retry_step = int(found[1])
    return "PRECISION ERROR"


def grow(new_ranks: list[int], args: Any, params: str) -> None:
    assert params == '{"scale-out-strategy": "DP"}' and rebooted is (RANK in new_ranks)
    if rebooted and "DIES_GROWING" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)
    rebuild_groups(new_ranks, args, None)


def grow_repair(
    step: int,
    need_rebuild: bool,
    error_ranks: list[int],
    repair_info: dict[str, Any],
    args: Any,
    params: str,
) -> None:
    assert params == '{"scale-out-strategy": "DP"}' and not need_rebuild
    assert repair_info["repair_type"] in (
        RepairType.RT_SEND.value,
        RepairType.RT_RECV_REPAIR.value,
    )
    repair(step, need_rebuild, error_ranks, repair_info, args, None)


def grow_rollback(step: int, args: Any, params: str) -> None:
    assert params == '{"scale-out-strategy": "DP"}'
    rollback(step, args, None)


def save(step: int, save_info: list[dict[str, Any]], args: Any, ctx: Any) -> None:
    optimizer = args[OPTIMIZER]
    folder = OUTPUT / f"checkpoint-{step}.tmp"
    folder.mkdir(exist_ok=True)
    assert any(RANK in entry["ranks"] for entry in save_info)
    buffer = io.BytesIO()
    torch.save({"step": step, "state": optimizer.state}, buffer)
    (folder / part_of(optimizer)).write_bytes(buffer.getvalue())


def rename(step: int, args: Any) -> None:
    (OUTPUT / f"checkpoint-{step}.tmp").rename(OUTPUT / f"checkpoint-{step}")


# -- training --------------------------------------------------------------------------------------


def step_of(model: Model, optimizer: DistributedAdam, scheduler: Scheduler, losses: TextIO) -> None:
    """One step; the data and the dropout of a micro-batch are the same whenever and wherever it is
    computed."""
    found = []
    for share in lanes.shares():
        torch.manual_seed(1_000_003 * optimizer.steps + share)
        x = torch.randn(BATCH, WIDTH)
        loss = (model(x) - x.roll(1, 1)).pow(2).mean()
        loss.backward()
        found.append(f"{share}:{float(loss.detach()).hex()}")
    # before the update: a step whose update is done does not run again
    losses.write(f"{optimizer.steps} {','.join(found)} {time.time():.4f}\n")
    scheduler.step()
    optimizer.step(scheduler.rate, TOTAL)


def hurt(model: Model, optimizer: DistributedAdam) -> None:
    for fault, rank, step in FAULTS:
        mark = OUTPUT / f"fault-{fault}-{RANK}-{step}"
        if rank in (str(RANK), "all") and int(step) == optimizer.steps and not mark.exists():
            mark.touch()
            strike(fault, optimizer)
    if (mark := OUTPUT / f"raise-{RANK}").exists():
        mark.unlink()
        strike("raise", optimizer)


def strike(fault: str, optimizer: DistributedAdam) -> None:
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "poison":
        device.poison(optimizer.main)
    elif fault == "cut":
        device.cut_a_link()
    elif fault == "precision":
        raise RuntimeError("PRECISION ERROR: loss is nan, load ckpt step=5")
    elif fault in ("early", "late"):
        now = time.time_ns() // 1000
        hour = 3_600_000_000
        failed = now + hour if fault == "late" else now - hour
        raise RuntimeError(f"HBM MULTI BIT ECC ERROR. time us={failed}")
    else:
        raise ValueError("a defect that shows once")


@tft_exception_handler
def train(
    forward: Any, model: Model, optimizer: DistributedAdam, scheduler: Scheduler
) -> DistributedAdam:
    set_mindio_export_version("MindSpeed-LLM")
    if rebooted:
        raise RuntimeError("ARF FINISH")
    with open(OUTPUT / f"losses-{RANK}", "a", buffering=1) as losses:
        while optimizer.steps < STEPS:
            if PACE and not (OUTPUT / "hurry").exists():
                time.sleep(PACE)
            hurt(model, optimizer)
            lanes.by_hand((forward, model, optimizer, scheduler))
            forward(model, optimizer, scheduler, losses)
            if SAVE_INTERVAL and optimizer.steps % SAVE_INTERVAL == 0:
                save_checkpoint(optimizer)
            tft_pause_train(optimizer.steps)
    return optimizer


def main() -> None:
    global rebooted
    if RANK == 0 and "MINDX_TASK_ID" not in os.environ:
        tft_init_controller(RANK, WORLD, False, True, ZIT)
        tft_start_controller("127.0.0.1", 8000, False, "")
    tft_init_processor(RANK, WORLD, False, False, "", True, True, ZIT)
    tft_start_processor("127.0.0.1", 8000)
    rebooted = tft_is_reboot_node()
    make_groups()
    info = {"rank_list": DP_RANKS, "replica_cnt": REPLICAS, "replica_shift": 0}
    tft_set_optimizer_replica(RANK, [info])
    tft_set_dp_group_info(RANK, DP_RANKS)
    tft_register_save_ckpt_handler(save)
    tft_register_rename_handler(rename)
    tft_register_stop_handler(stop)
    tft_register_clean_handler(clean)
    tft_register_repair_handler(repair)
    tft_register_rollback_handler(rollback)
    tft_register_rebuild_group_handler(rebuild_groups)
    tft_register_stream_sync_handler(lambda: None)
    tft_register_zit_downgrade_rebuild_handler(lanes.shrink)
    tft_register_zit_upgrade_rebuild_handler(grow)
    tft_register_zit_upgrade_repair_handler(grow_repair)
    tft_register_zit_upgrade_rollback_handler(grow_rollback)
    for pattern in ("Connection closed by peer", "Connection reset by peer", "Broken pipe"):
        tft_register_exception_handler(pattern, "RS_HCCL_FAILED", lambda text: "gloo")
    tft_register_exception_handler("PRECISION ERROR", "RS_RETRY", precision_error)
    model = Model()
    (OUTPUT / f"pid-{RANK}").write_text(str(os.getpid()))
    (OUTPUT / f"type-{RANK}").write_text(os.environ.get("RESTART_FAULT_PROCESS_TYPE", "none"))
    optimizer = train(step_of, model, DistributedAdam(model), Scheduler())
    trained = [*optimizer.state, *optimizer.parameters]
    digest = [hashlib.sha256(t.detach().numpy().tobytes()).hexdigest() for t in trained]
    (OUTPUT / f"end-{RANK}").write_text(json.dumps([optimizer.steps, digest]))
    dist.destroy_process_group()


main()
