"""Checks whether the installed torch has the private names that recovery depends on: those of the
launcher, listed here, and those of a rank, from the files that use them. Called before a job
starts.

tests/adaptor/test_torch_versions.py compares them with the installed torch.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

TESTED = "2.13.0"
OLDEST = "2.7.1"  # of those that pass `make test-torch`: docs/compatibility.md

# those of docs/compatibility.md that are protected, without their last number
TRIED = tuple(f"2.{minor}" for minor in range(6, 16))

# module -> what taskd replaces in it or calls
LAUNCHER = {
    "torch.distributed.argparse_util": ("env",),
    "torch.distributed.launcher.api": ("LocalElasticAgent",),
    "torch.distributed.elastic.multiprocessing": ("SubprocessContext.close",),
    "torch.distributed.elastic.multiprocessing.api": (
        "SignalException",
        "SubprocessContext._start",
        "_terminate_process_handler",
    ),
    "torch.distributed.elastic.multiprocessing.errors": ("ProcessFailure",),
    "torch.distributed.elastic.agent.server.api": (
        "RunResult",
        "WorkerGroup.master_addr",
        "WorkerGroup.master_port",
        "WorkerState",
    ),
    "torch.distributed.elastic.agent.server.local_elastic_agent": (
        "LocalElasticAgent._exit_barrier",
        "LocalElasticAgent._monitor_workers",
        "LocalElasticAgent._rendezvous",
        "LocalElasticAgent._setup_local_watchdog",
        "LocalElasticAgent._shutdown",
        "LocalElasticAgent._start_workers",
    ),
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend": ("DEFAULT_PORT",),
    "torch.distributed.elastic.rendezvous.dynamic_rendezvous": (
        "DynamicRendezvousHandler._stop_heartbeats",
    ),
    "torch.distributed.elastic.rendezvous.registry": ("get_rendezvous_handler",),
    "torch.distributed.elastic.rendezvous.utils": ("parse_rendezvous_endpoint",),
}
RANK = {
    "torch": ("_foreach_copy_",),
    "torch.distributed": ("_register_comm_hook",),
    "torch.nn.parallel": ("DistributedDataParallel._ddp_init_helper",),
    "torch.utils.data.dataloader": ("_BaseDataLoaderIter.__next__",),
    "torch.testing._internal.distributed.fake_pg": ("FakeStore",),
}


def refusal() -> str | None:
    """Why no job can be protected with this torch, or None. Looks for the names themselves: version
    numbers say less. Raises ModuleNotFoundError where there is no torch."""
    import torch

    if missing := lacking():
        return (
            f"torch {torch.__version__} lacks {', '.join(missing)}: no job can be protected with"
            f" it. taskd is tested with torch {TESTED}; install that, or another from {OLDEST} on"
        )
    return None


def untried(version: str) -> bool:
    """Whether no test of taskd has run with a torch of this version."""
    return ".".join(version.partition("+")[0].split(".")[:2]) not in TRIED


def lacking() -> list[str]:
    """The names that this torch lacks."""
    import torch.distributed as dist

    if not dist.is_available():
        return ["torch.distributed, without which it was built"]
    found = [
        f"{module}.{name}"
        for module, names in {**LAUNCHER, **RANK}.items()
        for name in names
        if not _there(module, name)
    ]
    if found:
        return found
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

    # imports what has just been found
    from taskd.worker.communication import buckets, groups

    if "envs" not in inspect.signature(LocalElasticAgent._setup_local_watchdog).parameters:
        found.append("LocalElasticAgent._setup_local_watchdog(envs)")
    reducer = [f"Reducer.{name}" for name in buckets.REDUCER if not hasattr(dist.Reducer, name)]
    return found + groups.lacking() + reducer


def _there(module: str, name: str) -> bool:
    try:
        place: Any = importlib.import_module(module)
    except ImportError:
        return False
    for part in name.split("."):
        place = getattr(place, part, None)
    return place is not None
