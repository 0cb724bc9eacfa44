"""The process groups of a rank in a file, for tools that read profiles: which ranks are meant by a
communicator's name there."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from taskd import settings
from taskd.profiling.files import folder

FILE = "parallel_group.json"
DEFAULT = "default_group"

log = logging.getLogger("taskd.worker")


def dump_group_info(rank: int | None = None) -> None:
    """Write this rank's process groups into JOB/RANK/parallel_group.json beside its profiles:
    `{communicator: {"group_name", "group_rank", "global_ranks"}}`. The communicator's name is
    HCCL's, or torch's with other backends. Call it in the training loop, once the groups have been
    used: HCCL names a group at its first collective. An error is logged, and ends nothing.

    `rank`: this process's, as older guides have it; by default torch's.
    """
    from torch import distributed

    try:
        if not (distributed.is_available() and distributed.is_initialized()):
            log.error(
                "dump_group_info: there are no process groups: call it after init_process_group"
            )
            return
        own = distributed.get_rank()
        if rank is not None and (type(rank) is not int or rank != own):
            log.warning("dump_group_info: rank is %.80r: this process is rank %d", rank, own)
        path = folder(_base(), settings.job(os.environ), own) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(_groups(own), indent=4, ensure_ascii=False))
        fresh.replace(path)
        log.info("dump_group_info: %s is written", path)
    except Exception as error:  # whatever a backend raises, training goes on
        log.error("dump_group_info: nothing is written: %s: %s", type(error).__name__, error)


def _base() -> Path:
    return Path(settings.group_info_path(os.environ, settings.log_path(os.environ)))


def _groups(rank: int) -> dict[str, dict[str, Any]]:
    from torch import distributed
    from torch.distributed import distributed_c10d as c10d

    whole, found = c10d._get_default_group(), {}
    for group, (backend, _) in c10d._world.pg_map.items():
        name, meant = _names(group, str(backend).lower(), rank)
        if name:
            found[name] = {
                "group_name": DEFAULT if group is whole else meant,
                "group_rank": distributed.get_group_rank(group, rank),
                "global_ranks": distributed.get_process_group_ranks(group),
            }
    return found


def _names(group: Any, backend: str, rank: int) -> tuple[str, str]:
    """The communicator's name, "" if it has none yet, and what its maker called the group."""
    if "hccl" not in backend:
        meant = getattr(group, "group_desc", "undefined")
        return str(group.group_name), "" if meant == "undefined" else str(meant)
    import torch

    hccl: Any = group._get_backend(torch.device("npu"))
    config = getattr(hccl.options, "hccl_config", None) or {}
    name = hccl.get_hccl_comm_name(rank, init_comm=False)
    return str(name or ""), str(config.get("group_name", ""))
