"""Makes what ranks need to start: the shared memory of an epoch, and environment variables that
name it."""

from __future__ import annotations

import os
import shutil

from taskd import stacks
from taskd.agent import shared_memory
from taskd.agent.ranks.model import Epoch
from taskd.cython_api import library_path
from taskd.cython_api.page import Page
from taskd.records import sealed, store


def make_epoch(
    number: int,
    key: bytes,
    job: str,
    environments: dict[int, dict[str, str]],
    common: dict[str, str],
) -> Epoch:
    """Make the shared memory of an epoch whose ranks are not started yet. `key`: of their records.
    Adds its names and the `common` variables to `environments`, by local rank. Raises OSError."""
    directory = shared_memory.make()
    try:
        sealed.write_key(directory, key, job)
        page = Page.create(str(directory / "page"), len(environments))
        for local, environment in environments.items():
            environment.update(
                TASKD_PAGE=str(directory / "page"),
                TASKD_VAULT=str(directory),
                TASKD_SLOT=str(local),
                TASKD_LOCAL_RANK=str(local),
                TASKD_INCARNATION="0",
                **common,
            )
        pipes = {local: stacks.pipe(directory, local) for local in environments}
        os.mkfifo(directory / store.NOTES, 0o600)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return Epoch(number, directory, page, pipes)


def preloading() -> dict[str, str]:
    """Variables that make a process start with libtaskd."""
    present, ours = os.environ.get("LD_PRELOAD", ""), library_path()
    if ours in present.split(":"):
        return {"LD_PRELOAD": present}
    return {"LD_PRELOAD": f"{ours}:{present}" if present else ours}
