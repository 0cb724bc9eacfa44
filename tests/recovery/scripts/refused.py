"""mlp.py on a node that has little memory.

TEST_REFUSED=RANK:NUMBER   the allocation with that number, of that rank's first process, fails
TEST_MEMORY=DIRECTORY      the memory that there is, by files of a machine and its control groups
"""

import errno
import os
import runpy
from functools import partial
from pathlib import Path

from taskd.records import room
from taskd.worker.training import memory

rank, _, number = os.environ.get("TEST_REFUSED", "").partition(":")
left = [int(number or -1) if os.environ.get("TASKD_INCARNATION") == "0" else -1]
allocate = os.posix_fallocate


def allocated(file: int, at: int, size: int) -> None:
    left[0] -= 1
    if os.environ["RANK"] == rank and left[0] == -1:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    allocate(file, at, size)


os.posix_fallocate = allocated
if "TEST_MEMORY" in os.environ:
    room.of_node = partial(room.of_node, Path(os.environ["TEST_MEMORY"]))
    room.SMALL = 1
memory.AGAIN = 0.05
runpy.run_path(str(Path(__file__).with_name("mlp.py")), run_name="__main__")
