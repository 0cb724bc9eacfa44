"""Sums over all ranks with MindSpore's own collectives; each step's line has the process, the step
and what has been summed so far.

    msrun … collective.py STEPS [EXIT_STATUS]
"""

import os
import sys
import time

import mindspore
import numpy as np
from mindspore import Tensor, ops
from mindspore.communication import get_rank, init

mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
mindspore.set_device("CPU")
init()
rank, reduce, total = get_rank(), ops.AllReduce(), np.float32(0)
for step in range(int(sys.argv[1])):
    total += reduce(Tensor(np.array([rank + step], np.float32))).asnumpy()[0]
    with open(f"steps.{rank}", "a", encoding="utf-8") as file:
        file.write(f"{os.getpid()} {step} {total}\n")
    time.sleep(0.05)
sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
