"""mlp.py, whose rank 1 has another process group than its predecessor once it is replaced."""

import os
import runpy
from pathlib import Path

import torch.distributed as dist

initialize = dist.init_process_group


def init_process_group(*arguments, **more):
    initialize(*arguments, **more)
    dist.new_group([0, 1, 2, 3])
    if os.environ.get("TASKD_INCARNATION", "0") != "0":
        dist.new_group([0, 1])


dist.init_process_group = init_process_group
runpy.run_path(str(Path(__file__).with_name("mlp.py")), run_name="__main__")
