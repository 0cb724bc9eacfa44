"""Its sources are edited while it trains, and then rank 1 is killed.

train.py OUT STEPS EDIT SCRIPTS     see edits.py; "" for none. SCRIPTS: where record.py is

With SPAWN in the environment, processes that the ranks spawn at the end must have the same code.
"""

import inspect
import multiprocessing
import os
import signal
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

import taskd

try:
    from . import edits, model
except ImportError:
    import edits
    import model

try:
    import optional
except ImportError:
    optional = None

RATE = 0.05
KILLS = 3, 7  # the first replacement is killed too


def lately() -> float:
    """Imported in the loop."""
    import wave  # Python's own

    import late
    from space import inner

    assert hasattr(wave, "Wave_read")
    return late.SCALE + inner.SHIFT


def shown() -> None:
    """What Python says of the code is the code that runs here."""
    assert "Dropout(0.1)" in inspect.getsource(model.make)
    assert "RATE = 0.05" in inspect.getsource(sys.modules[main.__module__])
    try:
        model.make(1)
    except TypeError:
        assert "model.make(1)" in traceback.format_exc()


def known() -> tuple[float, float]:
    return RATE, lately()


def main() -> None:
    out, steps, kind = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    sys.path += [sys.argv[4], str(Path(__file__).parent)]
    import record

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, life = dist.get_rank(), int(os.environ.get("TASKD_INCARNATION", "0"))
    torch.manual_seed(7)
    net = DDP(model.make())
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=0.9)
    torch.manual_seed(100 + rank)
    job = taskd.protect(model=net, optimizer=optimizer)
    with record.Record(out, rank) as log:
        for attempt in job.steps(steps):
            with attempt as step:
                if kind and rank == 1 and step == KILLS[min(life, 1)] and life < 2:
                    if life == 0:
                        here = Path(__file__).parent
                        edits.edit(kind, here)
                    os.kill(os.getpid(), signal.SIGKILL)
                loss = net(torch.randn(16, 8)).square().mean() * lately()
                if optional is not None:
                    loss = loss * optional.FACTOR
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if attempt.committed:
                log.step(step, loss)
        if life:
            shown()
        log.final(net, optimizer)
    if "SPAWN" in os.environ:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(known) == known()
    record.leave(job)


if __name__ == "__main__":
    main()
