"""A script that never calls taskd: rank 1 fails in its first life, after a few collectives.

plain.py OUT
"""

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

out = Path(sys.argv[1])
dist.init_process_group("gloo")
rank = dist.get_rank()
life = os.environ["TORCHELASTIC_RESTART_COUNT"]
(out / f"life-{rank}-{life}-{os.getpid()}").touch()
for _ in range(5):
    dist.all_reduce(torch.ones(1))
if rank == 1 and life == "0":
    os._exit(7)
if life == "0":
    time.sleep(60)  # the launcher ends us
print(f"rank {rank} life {life} argv {sys.argv[2:]}", flush=True)
os._exit(0)
