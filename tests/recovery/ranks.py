"""python ranks.py WORLD SCRIPT ARGUMENTS: the script's ranks without any launcher, forked from one
process that has imported torch. A rank that imports it by itself takes 3 s of a core before its
first step, and undisturbed runs were a fifth of what the tests took.

The ranks of benchmarks/soak.py, benchmarks/soak_nodes.py and `taskd demo` are compared with those
of torchrun.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import signal
import socket
import sys

from taskd.worker.process.forked import WARM  # and why a process may be forked after these imports


def main() -> None:
    world, script = int(sys.argv[1]), sys.argv[2]
    for name in WARM:
        importlib.import_module(name)
    gc.freeze()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.update(
        WORLD_SIZE=str(world),
        LOCAL_WORLD_SIZE=str(world),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    ranks = set()
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
            sys.argv = sys.argv[2:]
            runpy.run_path(script, run_name="__main__")
            return
        ranks.add(pid)
    while ranks:
        pid, status = os.wait()
        ranks.remove(pid)
        if status:
            for other in ranks:
                os.kill(other, signal.SIGKILL)  # they would wait for it in a collective
            sys.exit(f"a rank ended with {os.waitstatus_to_exitcode(status)}")


if __name__ == "__main__":
    main()
