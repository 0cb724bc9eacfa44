"""Writes down what each process of a rank finds at its start. Rank 1 is replaced by the zygote, and
again after the zygote is gone.

surroundings.py OUT
"""

import json
import os
import sys

found = {
    "path": list(sys.path),
    "argv": list(sys.argv),
    "arguments": sys.orig_argv[1:],
    "cwd": os.getcwd(),
    "main": {
        name: str(value)
        for name, value in sorted(vars(sys.modules["__main__"]).items())
        if name.startswith("__") and name not in ("__builtins__", "__loader__", "__spec__")
    },
    "spec": getattr(__spec__, "name", None),
    "loader": [
        type(__loader__).__name__,
        getattr(__loader__, "path", None),
        getattr(__loader__, "name", None),
    ],
    "ours": sys.modules["__main__"].__dict__ is globals(),
}

import signal
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

out, rank = Path(sys.argv[1]), int(os.environ["RANK"])
life = int(os.environ.get("TASKD_INCARNATION", "0"))
found["imported"] = list(sys.path)
(out / f"found-{rank}-{life}").write_text(json.dumps(found))


def end_the_zygote() -> None:
    """It is the parent of what it has forked, and people find it by its command line."""
    command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    assert b"-m" in command and b"taskd.agent.ranks.zygote" in command, command
    # not this process with it, before it has said what it found
    (out / "zygote-ended").touch()
    os.kill(os.getppid(), signal.SIGKILL)


torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DDP(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = taskd.protect(model=model, optimizer=optimizer)
for attempt in job.steps(9):
    with attempt as step:
        if (rank, life, step) in ((1, 0, 3), (1, 1, 6)):
            if life == 1:
                end_the_zygote()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
(out / f"done-{rank}-{life}").touch()
