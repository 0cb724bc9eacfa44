"""The imports of the zygote of torch's ranks, and how its fork becomes a rank."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys

from taskd import raised
from taskd.cython_api import slot
from taskd.worker.process import replacement

WARM = (
    "torch",
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",  # the first optimizer would import it: 1 s
    "torch.utils.data",
    "torch.utils.data.distributed",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.testing._internal.distributed.fake_pg",
    "runpy",
    "taskd.worker.protection",
    # where a framework repairs itself: an import of 30 ms, a seventh of a repair
    "taskd.adaptor.mindio.framework_ttp.ttp_decorator",
)
WARM_IF_THERE = ("numpy",)  # torch does not require it


def warm() -> None:
    for name in WARM:
        importlib.import_module(name)
    for name in WARM_IF_THERE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    import torch

    from taskd import trainers
    from taskd.worker.discovery import liveness, project
    from taskd.worker.set_up import interception

    trainers.warm()
    # all modules are looked at here, not in each fork
    interception.rehearse()
    project.know_modules()
    liveness.rehearse()
    replacement.prepare(os.environ.pop("TASKD_SCRIPT", ""))
    torch.manual_seed(0)  # reads sources for a stack that it keeps
    # and keeps the seed for GPUs: every fork that seeds none would begin with it
    for queue in ("torch.cuda", "torch.xpu"):
        module = sys.modules.get(queue)
        if (kept := getattr(module, "_lazy_seed_tracker", None)) is not None:
            module._lazy_seed_tracker = type(kept)()  # type: ignore[union-attr]
    # the first optimizer also registers things; built on one element it runs no parallel region. Of
    # a class of its own: torch changes the class's `step`, and one that a script derives from SGD
    # and that calls SGD's would have its hooks called twice
    type("First", (torch.optim.SGD,), {})([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def run(command: list[str], launcher: int) -> None:
    """Run the script as the rank's first process ran it, or would have. `launcher`: its pidfd."""
    import torch

    from taskd import trainers

    torch.default_generator.seed()
    trainers.forked()
    raised.offer()
    replacement.launcher = launcher
    slot.attach(os.environ["TASKD_PAGE"], int(os.environ.pop("TASKD_SLOT")))
    replacement.run(command)
