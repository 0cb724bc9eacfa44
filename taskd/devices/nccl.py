"""The end of NCCL's communicators, from another thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable
from typing import Any

import torch

log = logging.getLogger("taskd.devices")

# seconds; less than a rank has after an interruption
LIMIT = 1.5


def backend_of(group: Any) -> Any:
    """The group's NCCL backend, or None: gloo serves CUDA tensors too, and a replacement's first
    group is torch's fake one."""
    try:
        backend = group._get_backend(torch.device("cuda"))
    except RuntimeError:
        return None
    return backend if "NCCL" in type(backend).__name__ else None


def abort(backends: Iterable[Any]) -> list[Any]:
    """End the communicators of `backends`, each in a thread of its own: NCCL's abort waits for what
    the communicator has queued, which may be queued behind a collective of another one. Returns
    those that have ended, after at most LIMIT seconds; names the others."""
    ended: list[Any] = []

    def end(backend: Any) -> None:
        try:
            backend.abort()
            ended.append(backend)
        except Exception:
            log.exception(
                "an NCCL communicator could not be aborted; this rank will be replaced if it stays"
                " blocked"
            )

    threads = [threading.Thread(target=end, args=(b,), name="taskd-ncclabort") for b in backends]
    for thread in threads:
        thread.daemon = True
        thread.start()
    left = LIMIT
    for thread in threads:
        before = time.monotonic()
        thread.join(max(left, 0))
        left -= time.monotonic() - before
    if late := sum(thread.is_alive() for thread in threads):
        log.error(
            "%d of %d NCCL communicators have not ended within %.1f s of their abort; this rank"
            " will be replaced if it stays blocked",
            late,
            len(threads),
            LIMIT,
        )
    return ended
