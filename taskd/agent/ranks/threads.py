"""Threads of an agent that has to go on where the kernel starts no further thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("taskd.agent")


def run(name: str, action: Callable[[], None], here: bool = True) -> None:
    """Run `action` in a thread of its own. If none can be started, run it in this one; or, if not
    `here`, do without."""
    try:
        threading.Thread(target=action, name=name, daemon=True).start()
    except RuntimeError as error:
        log.warning("%s: %s; the limit is `ulimit -u`, or the container's pids.max", name, error)
        if here:
            action()
