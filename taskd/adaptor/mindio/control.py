"""A thread that answers the agent while the rank trains, on a connection of its own."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

from taskd.messages import from_rank, to_rank
from taskd.worker.communication.channel import AgentGone, Channel
from taskd.worker.process import belonging

if TYPE_CHECKING:
    from taskd.adaptor.mindio.processor import Processor

NO_FAULTS = (
    "faults are injected into ranks that called taskd.protect; this one's framework repairs itself:"
    " kill the process, or make the device fail"
)

log = logging.getLogger("taskd.worker")


def start(agent: str, processor: Processor) -> None:
    """Connect to the agent named `agent` and attend to it for as long as the process lives."""
    channel = Channel(agent)
    channel.send(from_rank.ControlHello(processor.rank, processor.incarnation))
    threading.Thread(
        target=_attend, args=(channel, processor), name="taskd-control_thread", daemon=True
    ).start()


def _attend(channel: Channel, processor: Processor) -> None:
    rank, incarnation = processor.rank, processor.incarnation
    while True:
        try:
            belonging.outlive_nobody(channel)
            order = channel.receive()
            if isinstance(order, to_rank.ProbeProgress):
                updates = processor.updates
                channel.send(
                    from_rank.Progress(
                        rank,
                        incarnation,
                        order.call,
                        updates.step,
                        int(updates.updating),
                        time.process_time(),
                    )
                )
            elif isinstance(order, to_rank.Inject):
                channel.send(from_rank.Injected(order.request, rank, False, NO_FAULTS))
        except AgentGone:
            return
        except Exception:
            log.exception("the control thread continues after an error")
