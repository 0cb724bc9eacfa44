"""Saves a rank's training state as its job ends (a dump), and loads it when a job begins from
one."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as checkpoint

from taskd.records import dumps
from taskd.records.sealed import BadRecord
from taskd.worker import entry, plain, stored
from taskd.worker.entry import Entry
from taskd.worker.state import TrainingState


def state_dict(state: TrainingState) -> dict[str, Any]:
    """The state as the script knows it: name given to protect() -> that object's state_dict()."""
    objects = {**state.modules, **state.optimizers, **state.small}
    return {name: value.state_dict() for name, value in objects.items()}


def save(state: TrainingState, work: Path) -> tuple[dumps.File, ...]:
    """Write the state in memory to `work`. Raises OSError, also for a full disk, and then leaves
    nothing behind."""
    place = work / dumps.STATE
    try:
        place.mkdir(parents=True, exist_ok=True)
        writer = checkpoint.FileSystemWriter(place, sync_files=True)
        values = state_dict(state)
        stored.write_index(
            work, values, checkpoint.save(values, storage_writer=writer, no_dist=True)
        )
        return tuple(
            dumps.describe(work, path) for path in (work / dumps.INDEX, *sorted(place.iterdir()))
        )
    except BaseException as error:
        full = _full(place)  # torch's writer does not report it
        with contextlib.suppress(OSError):
            dumps.discard(work)
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work.parent)) from None
        # the file system's error is inside, for each rank
        if isinstance(error, checkpoint.api.CheckpointException):
            reasons = [str(inner) for inner, _ in error.failures.values()]
            raise OSError("; ".join(reasons) or str(error)) from None
        raise


def _full(place: Path) -> bool:
    """Whether less than 1 MiB is free at `place`."""
    try:
        found = os.statvfs(place)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < 1 << 20


def load(state: TrainingState, found: dumps.Found, rank: int) -> tuple[int, Entry]:
    """Load the state of a checked dump; returns kind and content of the rank's record. Raises
    dumps.BadDump."""
    path = found.path / dumps.RECORDS / f"rank-{rank}"
    if rank not in found.ranks:
        raise dumps.BadDump(
            f"{found.path} has no record of rank {rank}: its node and the keeper of its records"
            f" were lost together. Load {dumps.STATE}/ with torch.distributed.checkpoint instead;"
            " random numbers and loader positions of such ranks are not known"
        )
    data = path.read_bytes()
    seal = dumps.seal_of(rank)
    try:
        found_entry = entry.decode(memoryview(data)[1:], seal, found.step)
        state.conform(found_entry.structure)
        values = stored.read(found.path)
    except (BadRecord, plain.Unreadable, OSError) as error:
        raise dumps.BadDump(f"{found.path}: {error}") from None
    if missing := {*state.modules, *state.optimizers} - set(values):
        raise dumps.BadDump(
            f"{found.path} has nothing for {', '.join(sorted(missing))}: give protect() the names"
            " that the dump was saved with"
        )
    for name, module in state.modules.items():
        module.load_state_dict(values[name])
    for name, optimizer in state.optimizers.items():
        optimizer.load_state_dict(values[name])
    state.refresh()
    return data[0], found_entry
