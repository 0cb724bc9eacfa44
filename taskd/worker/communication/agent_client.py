"""A rank's client of its agent: identifies the rank, sends its reports, and filters obsolete
orders. Shared by `taskd.protect` and `mindio_ttp`; imports neither torch nor mindspore.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from taskd.cython_api import slot
from taskd.messages import from_rank, to_rank
from taskd.worker.communication.channel import Channel

log = logging.getLogger("taskd.worker")

Fields = ParamSpec("Fields")


class AgentClient:
    """`incarnation`: the number of this process among the rank's."""

    channel: Channel  # once connected

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.incarnation = int(os.environ.get("TASKD_INCARNATION", "0"))

    def connect(self, device: str = "") -> None:
        """`device`: see RankHello. Raises OSError."""
        self.channel = Channel(os.environ["TASKD_AGENT"])
        self.report(from_rank.RankHello, os.getpid(), device[:128])

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
        """Send a message of this rank: its class, and its fields besides the rank and its
        incarnation. From any thread. Raises AgentGone."""
        self.channel.send(message(self.rank, self.incarnation, *fields, **more))

    # -- orders ------------------------------------------------------------------------------------

    def overtaken(self, order: Any) -> bool:
        """Whether a newer interruption has begun since the order was given. Its number is in the
        state page before its own orders arrive."""
        newest = slot.interruption()
        if getattr(order, "interruption", newest) >= newest:
            return False
        name = type(order).__name__
        log.info("rank %d: %s was overtaken by an interruption", self.rank, name)
        return True

    def failed(self, order: Any, error: Exception) -> None:
        """Report that an order failed with `error`, unless it was overtaken. The coordinator
        decides what happens next."""
        dump = order.dump if isinstance(order, to_rank.OfADump) else 0
        if not dump and self.overtaken(order):
            return
        log.warning("rank %d: %s failed", self.rank, type(order).__name__, exc_info=error)
        reason = f"{type(error).__name__}: {error}"[:500]
        if dump:  # the rank trains on
            self.report(from_rank.StateSaved, 0, (), reason, dump)
        else:
            self.report(from_rank.RankFailed, getattr(order, "generation", 0), reason)
