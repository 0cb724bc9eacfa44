"""Writes a copy of the state while the rank trains: copied in the training thread, while all ranks
are paused, and written in a thread of its own once all records are."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

from taskd import settings
from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.worker.communication.agent_client import AgentClient
from taskd.worker.communication.channel import AgentGone
from taskd.worker.dump import snapshot
from taskd.worker.dump.snapshot import Snapshot
from taskd.worker.state.training_state import TrainingState

log = logging.getLogger("taskd.worker")

RECORDS = 10.0  # seconds
LIMIT = 1800.0  # seconds; the manager gives a dump up then: core.settings.Settings.dump


class Beside:
    """Holds at most one copy; a new one takes the place of what an earlier manager asked for."""

    def __init__(self, agent: AgentClient) -> None:
        self._agent = agent
        self._lock = threading.Lock()
        self._number = 0
        self._held: Snapshot | None = None
        self._unasked: threading.Timer | None = None
        self._begun = threading.Event()  # to write
        self._writer: threading.Thread | None = None

    def copy(self, number: int, state: TrainingState) -> None:
        """Copy the state for dump `number`. Raises what torch raises."""
        self.drop()
        held = snapshot.copied(state)
        timer = threading.Timer(LIMIT, self._forget, (number,))
        timer.daemon = True
        with self._lock:
            self._number, self._held, self._unasked = number, held, timer
            self._begun.clear()
        timer.start()

    def drop(self) -> None:
        """Give up what is being written."""
        with self._lock:
            if self._unasked is not None:
                self._unasked.cancel()
            if self._held is not None:
                self._held.dropped.set()
            self._held = None

    def _forget(self, number: int) -> None:
        """No manager has asked for the copy."""
        with self._lock:
            if self._number == number:
                self._held = None

    def write(self, order: to_rank.SaveState) -> None:
        """Write the copy of the order's dump, in a thread; from any thread."""
        with self._lock:
            held = self._held if self._number == order.dump else None
            if held is None:
                self._agent.failed(order, RuntimeError("it has no copy for that dump"))
                return
            if self._unasked is not None:
                self._unasked.cancel()
            writer = threading.Thread(
                target=self._write, args=(held, order), name="taskd-dump", daemon=True
            )
        try:
            writer.start()
        except RuntimeError as error:  # the kernel starts no further thread
            self._agent.failed(order, error)
            return
        self._writer = writer
        self._begun.set()

    def _write(self, held: Snapshot, order: to_rank.SaveState) -> None:
        # torch.distributed.checkpoint takes 0.2 s to import and is rarely needed
        from taskd.worker.repair import dumping

        try:
            work = Path(settings.dump_path(os.environ)) / order.name
            files = dumping.save(held, work, order)
            self._agent.report(from_rank.StateSaved, order.interruption, files, "", order.dump)
        except AgentGone:
            return  # then the process ends
        except Exception as error:
            self._agent.failed(order, error)
        finally:
            self._forget(order.dump)

    def finish(self) -> None:
        """The interpreter ends: let a dump that is being written be completed. What is not to be
        written yet, as records of others are, is waited for for a while."""
        if self._held is None:
            return
        if slot.number() is not None:
            slot.patience(int(LIMIT))
        self._begun.wait(RECORDS)
        if (writer := self._writer) is not None:
            writer.join(LIMIT)
