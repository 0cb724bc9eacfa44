"""Estimates in the first steps of a job that may be asked to leave how long saving its state will
take, and says so if that is longer than the job will have then."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from taskd import settings
from taskd.messages import from_rank
from taskd.records import dumps
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.communication.channel import AgentGone
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

SAMPLE = 64 << 20  # bytes; a disk takes 0.1 to 1 s for them
# seconds besides the writing: torch.distributed.checkpoint is imported, ranks stop, launchers end
BESIDES = 2.0


def begin(state: TrainingState, ranks: int, agent: AgentClient) -> None:
    """Measure, in a thread of its own, if a signal asks the job to leave. The optimizer has its
    state. `ranks`: of the job, with private state as large as this one's."""
    if settings.preemption_signal(os.environ) is None:
        return
    private = sum(len(row) for row in (*state.buffers, *state.shards))
    size = sum(len(row) for row in state.replicated) + private * ranks
    threading.Thread(
        target=_estimate, args=(size, agent), name="taskd-estimate", daemon=True
    ).start()


def _estimate(size: int, agent: AgentClient) -> None:
    place, grace = Path(settings.dump_path(os.environ)), settings.grace_period(os.environ)
    if why := dumps.silent(place):
        _say(f"the job's state cannot be saved in {place} now: {why}")
    try:
        check_room(place, size)
        speed = measure(place, min(size, SAMPLE))
    except OSError as error:
        why = f"the job's state cannot be saved in {place}: {error}: name another --dump-dir"
    else:
        seconds, why = size / speed + BESIDES, ""
        with contextlib.suppress(AgentGone):  # then the process ends
            agent.report(from_rank.SaveEstimate, seconds)
        log.info("saving %.1f MB takes about %.1f s in %s", size / 1e6, seconds, place)
        if seconds > grace:
            why = (
                f"the job's state, {size / 1e9:.1f} GB, cannot be saved within the grace period of"
                f" {grace:g} s: it takes about {seconds:.0f} s in {place}, at"
                f" {speed / 1e6:.0f} MB/s. Set --grace-period (TASKD_GRACE_PERIOD) to what the"
                " scheduler gives, or --dump-dir to a faster disk"
            )
    _say(why)


def _say(why: str) -> None:
    if why:
        log.warning("%s", why)
        print(f"taskd: {why}", file=sys.stderr, flush=True)


def check_room(place: Path, size: int) -> None:
    """Raises OSError if `size` bytes do not fit where dumps are."""
    found = os.statvfs(_there(place))
    if (free := found.f_bavail * found.f_frsize) < size:
        text = f"{size / 1e6:,.1f} MB are needed, and {free / 1e6:,.1f} MB are free"
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: {text}")


def _there(place: Path) -> Path:
    return next(p for p in (place, *place.parents) if p.exists())


def measure(place: Path, size: int) -> float:
    """The bytes per second at which `size` bytes are written where dumps are, and read back. Raises
    OSError."""
    block, began = os.urandom(min(max(size, 1), 1 << 20)), time.monotonic()
    # without a name, so that a process that is killed leaves nothing behind
    with tempfile.TemporaryFile(dir=_there(place)) as file:
        for _ in range(max(size // len(block), 1)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        dumps.checked(file)
    return max(size, 1) / max(time.monotonic() - began, 1e-6)
