"""Finds the dumps that this rank could begin from; the manager chooses the newest that all can."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from taskd import settings
from taskd.records import dumps
from taskd.records.sealed import BadRecord
from taskd.worker.state import plain
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

MOST = 16  # offered; messages.values.Dumps


def find(state: TrainingState, rank: int, world_size: int) -> dict[str, dumps.Found]:
    """The checked dumps by name, the newest first; none where the job begins anew. Those that are
    torn, or of another job, are passed over if the newest is to be found (`auto`), and named.
    Raises dumps.BadDump."""
    place = settings.resume_path(os.environ)
    if place is None:
        return {}
    if place != settings.AUTO:
        found = dumps.newest(Path(place))
        _check(found, state, rank, world_size, whole=False)  # the rest as it is loaded
        return {found.path.name: found}
    here = Path(settings.dump_path(os.environ))
    complete, refused = dumps.complete(here)
    fitting: dict[str, dumps.Found] = {}
    for found in complete[:MOST]:
        try:
            _check(found, state, rank, world_size, whole=not fitting)
        except OtherRanks:
            raise
        except dumps.BadDump as error:
            refused.append(str(error))
        else:
            fitting[found.path.name] = found
    for why in refused:
        log.warning("a dump is passed over: %s", why)
        if rank == 0:
            print(f"taskd: a dump is passed over: {why}", file=sys.stderr, flush=True)
    return fitting


class OtherRanks(dumps.BadDump):
    """The dump is this job's, with another number of ranks."""


def _check(
    found: dumps.Found, state: TrainingState, rank: int, world_size: int, whole: bool
) -> None:
    """Raises BadDump if this rank cannot begin from the dump. `whole`: read all that it would
    load."""
    # imports torch.distributed.checkpoint, which takes 0.2 s
    from taskd.worker.repair import dumping

    try:
        owner = found.path.stat()
        if owner.st_uid not in (os.getuid(), 0) or owner.st_mode & 0o002:
            raise dumps.BadDump(
                f"{found.path} may have been written by other users: make this user its owner and"
                " only writer"
            )
        dumps.check(found, dumps.INDEX)
        dumping.check_names(state, found)
        if found.world_size != world_size:
            raise OtherRanks(
                f"{found.path} was saved by {found.world_size} ranks, this job has {world_size}:"
                " each rank's random numbers, loader position and buffers cannot be kept. Resume"
                f" with {found.world_size} ranks, or load {found.path / dumps.STATE} with"
                " torch.distributed.checkpoint.load, which reads the tensors into any layout"
            )
        found.check_whole()  # all ranks pass the same dumps over
        dumps.check(found, f"{dumps.RECORDS}/rank-{rank}")
        dumping.check_layout(state, found, rank)
        if whole:
            dumping.check_files(found, rank)
    except (BadRecord, plain.Unreadable, OSError) as error:
        raise dumps.BadDump(f"{found.path}: {error}") from None
