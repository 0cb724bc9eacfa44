"""The worker's functions of MindCluster's TaskD guides."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from taskd import settings
from taskd.api.arguments import MAX_RANK, not_int, not_one_of, refuse
from taskd.settings.profiling import TASKD_PROFILING_LIMIT

if TYPE_CHECKING:
    from taskd.profiling.rank import FileSwitch

FRAMEWORKS = ("pt", "ms")
MAX_DISK_MB = 2**31 - 1

log = logging.getLogger("taskd.api")

_worker: int | None = None
_follower: FileSwitch | None = None


def init_taskd_worker(
    rank_id: int, upper_limit_of_disk_in_mb: int = 5000, framework: str = "pt"
) -> bool:
    """Register this process as a training rank.

    Under an agent (TASKD_SLOT and TASKD_PAGE are set), attach it to its node's state page.

    Args:
        rank_id: The global rank.
        upper_limit_of_disk_in_mb: What the profiles of this node's ranks may take, in MB; each rank
            has an equal share, and deletes its oldest file then.
        framework: "pt" or "ms".

    Returns:
        Whether the arguments are valid and the process is attached.

    Example:
        from taskd.api import init_taskd_worker

        assert init_taskd_worker(rank_id=0, upper_limit_of_disk_in_mb=5000, framework="pt")
    """
    global _worker
    wrong = (
        not_int(
            "rank_id", rank_id, 0, MAX_RANK, "give the global rank, torch.distributed.get_rank()"
        )
        or not_int(
            "upper_limit_of_disk_in_mb",
            upper_limit_of_disk_in_mb,
            0,
            MAX_DISK_MB,
            "leave it out for 5000",
        )
        or not_one_of("framework", framework, FRAMEWORKS)
    )
    if wrong:
        return refuse(log, "init_taskd_worker", wrong)
    if not _attach():
        return False
    _worker = rank_id
    os.environ[TASKD_PROFILING_LIMIT.name] = str(upper_limit_of_disk_in_mb)
    return True


def start_taskd_worker() -> bool:
    """Follow the file profilingSwitch in a script that is not protected, and write down what it
    says. The ranks of a protected script learn from their agent what to write down.

    Returns:
        Whether there is a worker.

    Example:
        from taskd.api import init_taskd_worker, start_taskd_worker

        assert init_taskd_worker(rank_id=0) and start_taskd_worker()
    """
    if _worker is None:
        return refuse(
            log,
            "start_taskd_worker",
            "there is no worker; call init_taskd_worker(rank_id) first, and check what it returned",
        )
    global _follower
    if _follower is None and "torch" in sys.modules:
        from taskd.profiling.rank import FileSwitch, Profile

        profile = Profile(_worker, (), lambda _: None, lambda *_: None)
        _follower = FileSwitch(profile, Path(settings.profiling_switch(os.environ)))
        _follower.start()
    return True


def destroy_taskd_worker() -> bool:
    """Stop profiling, and forget the worker. The process stays attached, so that a later death can
    be explained.

    Returns:
        Whether there was a worker.

    Example:
        from taskd.api import destroy_taskd_worker, init_taskd_worker

        assert init_taskd_worker(rank_id=0) and destroy_taskd_worker()
    """
    global _worker
    if _worker is None:
        return refuse(log, "destroy_taskd_worker", "there is no worker to destroy")
    global _follower
    if _follower is not None:
        _follower.close()
        _follower = None
    _worker = None
    return True


def _attach() -> bool:
    number, page = os.environ.get("TASKD_SLOT"), os.environ.get("TASKD_PAGE")
    if not number or not page:
        return True  # no agent started this process: nothing to attach to
    if not (number.isascii() and number.isdigit()):
        return refuse(
            log,
            "init_taskd_worker",
            f"TASKD_SLOT={number!r}: allowed is a number; the agent sets it, leave it alone",
        )
    try:
        from taskd.cython_api import slot
    except ImportError as error:
        text = (
            "init_taskd_worker: libtaskd is not installed (%s): a death of this rank is noticed"
            " later and its cause is unknown"
        )
        log.warning(text, error)
        return True
    try:
        slot.attach(page, int(number))
    except (OSError, ValueError) as error:
        return refuse(
            log,
            "init_taskd_worker",
            f"slot {number} of the state page {page} is unavailable: {error}",
        )
    return True
