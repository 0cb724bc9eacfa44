"""Operators' requests to the job, from `taskd.control` and the commands that use it. Each is
answered once."""

from __future__ import annotations

import logging
from collections.abc import Callable

from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.overview import overview
from taskd.manager.devices.state import Devices
from taskd.manager.history.writer import JournalWriter
from taskd.manager.membership import Membership
from taskd.manager.outgoing import Outgoing
from taskd.messages import from_operator, to_operator, to_rank

# requests that break a healthy job; the others only delay it
ON_PURPOSE = (
    to_rank.Inject
    | from_operator.ReportCode
    | from_operator.NodeSubHealthy
    | from_operator.NicSwitchRequested
    | from_operator.StressTestRequested
)
NOT_ON_PURPOSE = (
    "this job accepts no injected faults, no reports of device or node faults, and no tasks for its"
    " devices: start it with TASKD_FAULT_INJECTION=on in the environment of its manager and its"
    " launchers"
)
MOST = 1000  # most requests that wait for an answer

log = logging.getLogger("taskd.manager")


class Operators:
    def __init__(
        self,
        coordinator: Coordinator,
        members: Membership,
        out: Outgoing,
        devices: Devices,
        journal_writer: JournalWriter,
        feed: Callable[[e.Event, float], None],
        on_purpose: bool,
    ) -> None:
        """`feed` gives an event to `core`. `on_purpose`: operators may inject faults and report
        them."""
        self._coordinator, self._members, self._out, self._feed = coordinator, members, out, feed
        self._devices, self._on_purpose = devices, on_purpose
        self._journal_writer = journal_writer
        self._waiting: dict[str, bytes] = {}  # request -> return route to its operator

    def request(self, route: bytes, message: from_operator.FromOperator, now: float) -> None:
        """Handle a request of an operator, who has the job's key."""
        if len(self._waiting) >= MOST:
            # drop the oldest: its operator has long given up
            self._waiting.pop(next(iter(self._waiting)))
        self._waiting[message.request] = route
        if isinstance(message, ON_PURPOSE) and not self._on_purpose:
            log.warning("%s is refused: TASKD_FAULT_INJECTION is not on", type(message).__name__)
            self.answer(to_operator.Answer(message.request, False, NOT_ON_PURPOSE))
            return
        if isinstance(message, from_operator.StatusAsked):
            self.answer(to_operator.Answer(message.request, True, overview(self._coordinator)))
            return
        if isinstance(message, from_operator.OverviewAsked):
            self.answer(self._journal_writer.overview(self._coordinator, message.request, now))
            return
        if isinstance(message, from_operator.ReleaseDevice):
            refusal = self._devices.release(message.device, now)
            self.answer(
                to_operator.Answer(
                    message.request,
                    not refusal,
                    refusal or f"{message.device[:100]!r} may be used again",
                )
            )
            self._devices.publish_all(now)
            self._members.offer_all(now)
            return
        if not isinstance(message, to_rank.Inject | from_operator.ReportCode):
            self._feed(message, now)
            return
        log.warning(
            "%s: %.300s",
            "an injected fault" if isinstance(message, to_rank.Inject) else "a reported fault code",
            message,
        )
        node = self._coordinator.job.topology.node_of(message.rank)
        owner = None if node is None else self._members.agents.get(node)
        if owner is None:
            self.answer(
                to_operator.Answer(
                    message.request, False, f"rank {message.rank} is on no node that has joined"
                )
            )
        elif isinstance(message, from_operator.ReportCode):
            if refusal := self._devices.report(message, owner, now):
                self.answer(to_operator.Answer(message.request, False, refusal))
        else:
            self._out.send(owner, message)

    def answer(self, answer: to_operator.ToOperator) -> None:
        route = self._waiting.pop(answer.request, None)
        if route is not None:
            self._out.reply(route, answer)

    def end(self, reason: str) -> None:
        """The job is over: answer all pending requests."""
        for request in list(self._waiting):
            self.answer(to_operator.Answer(request, False, f"the job is over: {reason}"))
