"""A worker that trains: a step each 20 ms, whose line has the process, the step and a sum.

    python worker.py STEPS [EXIT_STATUS | raise]

With `import mindspore` it would call MindSpore's `init()`; here it calls what stands in for that in
the folder `modules`.
"""

import os
import sys
import time

from mindspore.communication.management import init

init()
if not all(os.path.exists(f"made.{rank}") for rank in range(int(os.environ["MS_WORKER_NUM"]))):
    sys.exit(9)  # a rank has not made its group: a first collective would fail
rank, steps = int(os.environ["RANK_ID"]), int(sys.argv[1])
total = 0
for step in range(steps):
    total += step * (rank + 1)
    with open(f"steps.{rank}", "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {step} {total}\n")
    time.sleep(0.02)
if "raise" in sys.argv:
    raise ValueError("no such file")
print("done", rank, total, flush=True)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
