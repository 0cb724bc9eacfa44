"""MindSpore's scheduler, which msrun starts on the master node but does not watch.

msrun registers no function for it. Its process is an attribute of the object whose methods are
registered; where that is missing (tests/mindspore/test_contract.py), the scheduler is left alone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import threading
from collections.abc import Callable
from typing import Any

from taskd.agent.ranks.model import pidfd

LEAVING = 10.0  # seconds; it ends by itself ~1 s after the last worker has left

log = logging.getLogger("taskd.agent")


class Scheduler:
    def __init__(self, function: Callable[..., Any], died: Callable[[], None]) -> None:
        """`function`: one that msrun has registered. `died` is called from another thread."""
        self._manager = getattr(function, "__self__", None)
        self._died = died
        self._watched = 0  # pid
        self._watch()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        found = getattr(self._manager, "msn_process", None)
        return found if isinstance(found, subprocess.Popen) else None

    @property
    def status(self) -> int | None:
        """Its exit status; None if it runs, or is on another node."""
        return self.process.poll() if self.process is not None else None

    @property
    def dead(self) -> bool:
        """Whether this node's scheduler has ended, well or not: it leaves once all workers have."""
        return self.status is not None

    @property
    def failed(self) -> bool:
        """Whether it has ended while workers may need it."""
        return self.status not in (None, 0)

    def start(self) -> None:
        """Start another one in its place."""
        role = os.environ.get("MS_ROLE")
        assert self._manager is not None
        self._manager.start_scheduler()
        os.environ.pop("MS_ROLE", None)
        if role is not None:
            os.environ["MS_ROLE"] = role
        self._watch()

    def end(self, kill: bool) -> None:
        """Wait for its end, and kill it if it does not come, or at once."""
        process = self.process
        if process is None:
            return
        if not kill:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(LEAVING)
        if process.poll() is None:
            log.info("the scheduler (pid %d) is killed", process.pid)
            process.kill()
            process.wait()

    def _watch(self) -> None:
        process = self.process
        fd = pidfd(process.pid) if process is not None else None
        if process is None or fd is None:
            return
        self._watched = process.pid
        threading.Thread(target=self._wait, args=(fd,), name="taskd-scheduler", daemon=True).start()

    def _wait(self, fd: int) -> None:
        select.select([fd], [], [])
        os.close(fd)
        self._died()
