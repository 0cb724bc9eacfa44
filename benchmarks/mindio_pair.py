"""What the two calls around each update cost, through mindio_ttp: one call after the other, and
after work that has emptied the caches.

mindio_pair.py OUTPUT
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from mindio_ttp import framework_ttp as ttp

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
SIDE = 400  # of matrices, three of them 1.9 MB


def work() -> None:
    torch.randn(SIDE, SIDE) @ torch.randn(SIDE, SIDE)


@ttp.tft_exception_handler
def train() -> dict[str, list[float]]:
    """Seconds that each pair took."""
    found: dict[str, list[float]] = {"tight": [], "cold": []}
    done = 0
    for name, pairs in (("tight", 5000), ("cold", 300)):
        for _ in range(pairs):
            if name == "cold":
                work()
                dist.barrier()
            began = time.perf_counter()
            ttp.tft_start_updating_os()
            done += 1
            ttp.tft_end_updating_os(done)
            found[name].append(time.perf_counter() - began)
    return found


dist.init_process_group("gloo")
if RANK == 0:
    ttp.tft_init_controller(RANK, WORLD, False)
    ttp.tft_start_controller("127.0.0.1", 8000, False, "")
ttp.tft_init_processor(RANK, WORLD, False, False, "", True, True, False)
ttp.tft_start_processor("127.0.0.1", 8000)
replicas = [{"rank_list": list(range(WORLD)), "replica_cnt": WORLD, "replica_shift": 0}]
ttp.tft_set_optimizer_replica(RANK, replicas)
for name in ["save_ckpt", "rename", "stop", "clean", "repair", "rollback", "rebuild_group"]:
    getattr(ttp, f"tft_register_{name}_handler")(lambda *arguments: 0)
(Path(sys.argv[1]) / f"pairs-{RANK}").write_text(json.dumps(train()))
dist.destroy_process_group()
