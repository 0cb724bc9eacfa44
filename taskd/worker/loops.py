"""What a job does for its script: hands out attempts and makes calls, protected or not.

`training/loop.py` hands out the attempts of a protected rank, `training/calls.py` makes its calls.
Without an agent, or after protection has ended, they are handed out here and nothing is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

from taskd.cython_api import slot
from taskd.messages import to_rank
from taskd.worker.communication.patience import Patience
from taskd.worker.repair.session import RepairSession
from taskd.worker.training.attempt import Attempt
from taskd.worker.training.calls import Calls
from taskd.worker.training.loop import Loop
from taskd.worker.training.unprotected import Unprotected

log = logging.getLogger("taskd.worker")


class Loops:
    """The part of a `Job` that scripts do not call."""

    def __init__(self, conversation: RepairSession | None) -> None:
        self._patience = Patience() if conversation is None else conversation.patience
        self._unprotected = Unprotected()
        self.loop: Loop | None = None  # of a protected rank
        self._calls: Calls | None = None
        self._begun = False  # whether the script has begun a loop
        if conversation is not None:
            self.loop = Loop(conversation)
            self._calls = Calls(self.loop)
            self._patience.while_compiling()

    @property
    def position(self) -> int:
        """The next step, for taskd's own threads."""
        return self.loop.attempts.step if self.loop is not None else self._unprotected.step

    def _run(self, loader: Iterable[Any] | None, total: int | None) -> Iterator[Attempt]:
        loop, self._begun = self.loop, True
        if loop is not None and loop.cursor.calls:
            raise RuntimeError(
                "job.steps() and job.batches() cannot follow job.call(): a replacement could not"
                " skip the calls"
            )
        if loop is None:
            rest = iter(loader) if loader is not None else None
            yield from self._unprotected.attempts(rest, total)
            return
        over = yield from loop.run(loader, total)
        if loop.attempts.alone:
            self.leave_alone(loop.attempts.alone)
        if not over:
            yield from self._unprotected.attempts(loop.rest(), total)

    def leave_alone(self, reason: str) -> None:
        """End protection; training continues."""
        level = logging.INFO if reason == to_rank.ENDED else logging.WARNING
        log.log(level, "training continues without protection: %s", reason)
        slot.leave_on(0)
        slot.started(slot.ALL_DONE)  # no other rank waits for this one
        if self.loop is not None:
            self.loop.draws.let_go()
            self._unprotected.announced = self.loop.session.entries.announced
        self._unprotected.step, self.loop, self._calls = self.position, None, None

    def _alone(self) -> None:
        """Run the earlier calls that must be repeated, after protection has ended inside a call."""
        assert self.loop is not None and self._calls is not None
        repeated = self._calls.repeated()
        self.leave_alone(self.loop.attempts.alone)
        for call in repeated:
            call()
            self._unprotected.step += 1

    @property
    def abandoned(self) -> bool:
        """Whether the script has left an attempt by an exception or sys.exit()."""
        return self.loop is not None and self.loop.attempts.abandoned

    def collectives(self) -> int:
        """The number of collectives begun in this attempt; 0 between attempts."""
        return self.loop.attempts.collectives() if self.loop is not None else 0
