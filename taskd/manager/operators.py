"""Operators' requests to the job, from `taskd.control` and the commands that use it. Each is
answered once."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from taskd.core import events as e
from taskd.core.coordinator import Coordinator
from taskd.core.overview import overview
from taskd.manager.devices.state import Devices
from taskd.manager.history.writer import JournalWriter
from taskd.manager.membership import Membership
from taskd.manager.outgoing import Outgoing
from taskd.messages import from_operator, to_operator, to_rank

# requests of a site's device monitoring
REPORTS = (
    from_operator.ReportCode
    | from_operator.NodeSubHealthy
    | from_operator.NicSwitchRequested
    | from_operator.StressTestRequested
)
# requests answered even by a manager that is not in charge: they concern its own knowledge and
# files
ALWAYS = (
    from_operator.StatusAsked
    | from_operator.OverviewAsked
    | from_operator.RanksAsked
    | from_operator.ReleaseDevice
)
MOST = 1000  # most requests that wait for an answer

log = logging.getLogger("taskd.manager")


@dataclass(frozen=True)
class Accepted:
    """Which of the requests that can break a healthy job are accepted; all others only delay it."""

    injected: bool = False  # test faults, TASKD_FAULT_INJECTION
    reports: bool = False  # REPORTS, TASKD_FAULT_REPORTS

    def refusal(self, message: from_operator.FromOperator) -> str:
        """Why the job does not accept a request; "" if it does."""
        if isinstance(message, to_rank.Inject) and not self.injected:
            what, variable = "test faults", "TASKD_FAULT_INJECTION"
        elif isinstance(message, REPORTS) and not self.reports:
            what = "reports of device or node faults, and no tasks for its devices"
            variable = "TASKD_FAULT_REPORTS"
        else:
            return ""
        return (
            f"this job accepts no {what}: start it with {variable}=on in the environment of its"
            " manager and its launchers"
        )


class Operators:
    def __init__(
        self,
        coordinator: Coordinator,
        members: Membership,
        out: Outgoing,
        devices: Devices,
        journal_writer: JournalWriter,
        feed: Callable[[e.Event, float], None],
        accepted: Accepted,
    ) -> None:
        """`feed` gives an event to `core`."""
        self._coordinator, self._members, self._out, self._feed = coordinator, members, out, feed
        self._devices, self._accepted = devices, accepted
        self._journal_writer = journal_writer
        self._waiting: dict[str, bytes] = {}  # request -> return route to its operator

    def request(self, route: bytes, message: from_operator.FromOperator, now: float) -> None:
        """Handle a request of an operator, who has the job's key."""
        if len(self._waiting) >= MOST:
            # drop the oldest: its operator has long given up
            self._waiting.pop(next(iter(self._waiting)))
        self._waiting[message.request] = route
        if refusal := self._accepted.refusal(message):
            log.warning("%s is refused: %s", type(message).__name__, refusal)
            self.answer(to_operator.Answer(message.request, False, refusal))
            return
        if not self._coordinator.election.in_charge and not isinstance(message, ALWAYS):
            self.answer(to_operator.NotInCharge(message.request))
            return
        if isinstance(message, from_operator.StatusAsked):
            self.answer(to_operator.Answer(message.request, True, overview(self._coordinator)))
            return
        if isinstance(message, from_operator.OverviewAsked):
            self.answer(self._journal_writer.overview(self._coordinator, message.request, now))
            return
        if isinstance(message, from_operator.RanksAsked):
            ranks = self._journal_writer.ranks(self._coordinator, now)
            found = ranks.page(message.first, message.count)
            self.answer(to_operator.RanksSeen(message.request, found))
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
        if isinstance(message, to_rank.Inject):
            log.warning("an operator injects a fault into rank %d: %s", message.rank, message.what)
        else:
            log.warning("an operator reports code %s on rank %d", message.code, message.rank)
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
