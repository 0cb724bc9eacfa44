"""Checks whether the installed torch has the functions that recovery depends on."""

from __future__ import annotations

import inspect

TESTED = "2.13.0"


def refusal() -> str | None:
    """Why this torch cannot be used, or None. Looks for the functions themselves: version numbers
    say less."""
    import torch
    import torch.distributed as dist
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.nn.parallel import DistributedDataParallel

    needed = {
        "torch.distributed was built": dist.is_available(),
        "LocalElasticAgent._setup_local_watchdog(envs)": (
            "envs" in inspect.signature(LocalElasticAgent._setup_local_watchdog).parameters
        ),
        "Reducer._update_process_group": hasattr(
            getattr(dist, "Reducer", None), "_update_process_group"
        ),
        "DistributedDataParallel._ddp_init_helper": hasattr(
            DistributedDataParallel, "_ddp_init_helper"
        ),
        "torch.distributed.Reducer": hasattr(dist, "Reducer"),
        "torch._foreach_copy_": hasattr(torch, "_foreach_copy_"),
    }
    missing = [name for name, there in needed.items() if not there]
    if missing:
        return (
            f"torch {torch.__version__} lacks {'; '.join(missing)}: taskd is tested with torch"
            f" {TESTED}; install that or a later version"
        )
    return None
