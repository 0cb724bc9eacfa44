"""This process as a rank, to its agent: who it is, what it tells, and which orders are still worth
carrying out. The same for `taskd.protect` and `mindio_ttp`; imports neither torch nor mindspore.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from taskd.cython_api import slot
from taskd.messages import from_rank
from taskd.worker.communication.channel import Channel

log = logging.getLogger("taskd.worker")

Fields = ParamSpec("Fields")


class AgentClient:
    """`incarnation`: the number of this process among the rank's."""

    channel: Channel  # once connected

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.incarnation = int(os.environ.get("TASKD_INCARNATION", "0"))

    def connect(self) -> None:
        """Raises OSError."""
        self.channel = Channel(os.environ["TASKD_AGENT"])
        self.report(from_rank.RankHello, os.getpid())

    def beside(self) -> AgentClient:
        """The same rank on a connection of its own, for a thread that answers while the rank
        trains. Raises OSError."""
        other = AgentClient(self.rank)
        other.channel = Channel(os.environ["TASKD_AGENT"])
        other.report(from_rank.ControlHello)
        return other

    def report(
        self,
        message: Callable[Concatenate[int, int, Fields], Any],
        *fields: Fields.args,
        **more: Fields.kwargs,
    ) -> None:
        """Send a message of this rank: its class, and what it has besides the rank and its
        incarnation. From any thread. Raises AgentGone."""
        self.channel.send(message(self.rank, self.incarnation, *fields, **more))

    # -- orders ------------------------------------------------------------------------------------

    def overtaken(self, order: Any) -> bool:
        """Whether a newer interruption has begun since the order was given: its own orders come,
        after its number was in the state page."""
        newest = slot.interruption()
        if getattr(order, "interruption", newest) >= newest:
            return False
        name = type(order).__name__
        log.info("rank %d: %s was overtaken by an interruption", self.rank, name)
        return True

    def failed(self, order: Any, error: Exception) -> None:
        """Carrying out an order has raised `error`: tell it, unless the order was overtaken. The
        coordinator decides what happens next."""
        if self.overtaken(order):
            return
        log.warning("rank %d: %s failed", self.rank, type(order).__name__, exc_info=error)
        reason = f"{type(error).__name__}: {error}"[:500]
        self.report(from_rank.RankFailed, getattr(order, "generation", 0), reason)

    # -- pauses ------------------------------------------------------------------------------------

    def pauses(self, step: int) -> bool:
        """Whether all ranks are to stop before `step`, or before an earlier one."""
        until = slot.pause_step()
        return until is not None and step >= until

    def begun(self, step: int) -> None:
        """The state page says that `step` has begun: a pause before it comes too late from now
        on."""
        if self.pauses(step):
            self.report(from_rank.RankPassed, step)
