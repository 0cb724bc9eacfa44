"""An agent without a node: it waits for one, prepares for one when ordered, takes one over.

It takes over a lost node, with new processes for the ranks; or a node that it was ordered to
prepare for (`Prepare`): then the processes run the user's script up to its first attempt while the
job trains without them, and when it is given the node they need only the newest records. Until
these ranks have their state the node may be taken back (`StandDown`), and the agent waits again.
"""

from __future__ import annotations

import contextlib
import logging
import queue
from collections.abc import Callable
from functools import partial
from typing import Any

from taskd.agent.copies import standing_in
from taskd.agent.copies.fetching import put_back
from taskd.agent.member import Member
from taskd.agent.ranks.model import Epoch, Preparation, Rank
from taskd.agent.ranks.rank_monitor import RankMonitor
from taskd.agent.ranks.rank_processes import RankProcesses
from taskd.messages import between_agents, from_agent, to_agent, to_rank, values
from taskd.messages.envelope import STANDBY
from taskd.protocol.addresses import Address
from taskd.records import store

log = logging.getLogger("taskd.agent")

# seconds that fetching a node's records may take, more than copies/fetching.py takes; the manager
# gives up a standby after 30
FETCH = 20.0

# seconds between two looks for a manager while none has ever answered, at first and at most
LOOK, SELDOM = 3.0, 60.0

Order = to_agent.Prepare | to_agent.TakeOver
Find = Callable[[Address], Address | None]


class Standby:
    """`wait`, `take_over` and `get_ready` are called by the launcher's thread, the rest by the
    agent's."""

    def __init__(self, member: Member, processes: RankProcesses, monitor: RankMonitor) -> None:
        self._member, self._processes, self._monitor = member, processes, monitor
        # None: no order will come
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self.room: int | None = None  # how many ranks it can run, while it has no node
        self._moved: to_agent.Prepare | None = None  # the node that it prepared for, and has
        # a move whose manager is gone, until the next one knows about it
        self._broken_off: to_agent.Prepare | None = None
        # the job goes on without the ranks of the node that it had; until it waits for another
        self.idle = False

    # -- the launcher's thread ---------------------------------------------------------------------

    def wait(self, ranks: int, find: Find) -> Order | None:
        """Wait for an order; None if the job ends first. `ranks`: how many this agent can run.
        `find`: where the manager in charge is, if not where it was asked."""
        managers = self._member.managers
        assert managers is not None
        self.room, self.idle = ranks, False
        self._member.call(self._member.announce)
        look = LOOK
        while True:
            with contextlib.suppress(queue.Empty):
                order = self._orders.get(timeout=None if managers.met else look)
                break
            look = min(1.5 * look, SELDOM)
            # the manager may have moved while this standby started, and nothing tells it
            if not managers.met and (place := find(managers.link.address)) is not None:
                self._member.call(partial(managers.meet_at, place))
        if not isinstance(order, to_agent.Prepare):
            self.room = None
        return order

    def take_over(self, order: to_agent.TakeOver, context: Any) -> None:
        """Become the node: put its ranks' records in place, notify the manager, start the ranks.
        `prepare` has been called."""
        epoch = self._epoch(order, context)
        self._put_in_place(epoch, self._fetch(epoch, order) if order.records else [])

        def take() -> None:
            self._take(epoch, order)
            if not order.restart:
                self._start(epoch, order)

        self._member.adopt(epoch)
        self._member.call(take)

    def get_ready(self, order: to_agent.Prepare, context: Any) -> None:
        """Start the ranks of a node that still trains elsewhere. `prepare` has been called."""
        epoch = self._epoch(order, context)
        found = [] if order.own_state else self._fetch(epoch, order)
        self._put_in_place(epoch, found)

        def start() -> None:
            if not self.holds(order):
                epoch.drop()
                return
            self._member.adopt(epoch)
            if not found and not order.own_state:
                self._fail("its records cannot be fetched")
                return
            self._start(epoch, order)

        self._member.call(start)

    def _epoch(self, order: Order, context: Any) -> Epoch:
        member = self._member
        member.context = context
        epoch = member.next
        assert epoch is not None
        restart = isinstance(order, to_agent.TakeOver) and order.restart
        for local, (number, incarnation) in enumerate(
            zip(order.ranks, order.incarnations, strict=True)
        ):
            epoch.ranks[local] = Rank(
                number,
                local,
                None,
                None,
                epoch.pipes[local],
                max(incarnation - 1, 0),
                joined=not restart,
                stateless=not restart,
            )
        return epoch

    @staticmethod
    def _put_in_place(epoch: Epoch, found: list[between_agents.Keep] | None) -> None:
        put_back(epoch.directory, {r.number: r.local for r in epoch.ranks.values()}, found or [])

    def _start(self, epoch: Epoch, order: Order) -> None:
        for rank, incarnation in zip(epoch.ranks.values(), order.incarnations, strict=True):
            self._processes.replace(epoch, rank, incarnation)

    def _fetch(self, epoch: Epoch, order: Order) -> list[between_agents.Keep] | None:
        answer: queue.SimpleQueue[list[between_agents.Keep] | None] = queue.SimpleQueue()
        self._ask(epoch, order, answer.put)
        found = None
        with contextlib.suppress(queue.Empty):
            found = answer.get(timeout=FETCH)
        if found is None:
            log.error("the records of node %d cannot be fetched", order.node)
        return found

    def _ask(
        self,
        epoch: Epoch,
        order: Order,
        then: Callable[[list[between_agents.Keep] | None], None],
    ) -> None:
        """Fetch the records of the node's ranks, and call `then` with them."""
        records = self._member.records
        assert records is not None
        if not order.nested:
            records.fetch(order.node, order.ranks, order.records, then)
            return

        def pick(found: list[between_agents.Keep]) -> None:
            then(standing_in.pick(epoch.directory, order.ranks, found) or None)

        standing_in.gather(records, order.nested, pick)

    # -- orders ------------------------------------------------------------------------------------

    def ordered(self, order: Order) -> None:
        """Handle the manager's order to this agent."""
        preparation, self._broken_off = self._member.preparation, None
        if self.room is None:
            return
        if (
            isinstance(order, to_agent.TakeOver)
            and order.former
            and (preparation is None or not self._fits(preparation, order))
        ):
            # the job is paused, and would have to wait for the script to run from its first line
            self._stand_down("it is not ready")
            self._member.report(
                from_agent.PreparationFailed(order.node, self._member.name, "it is no longer ready")
            )
            return
        if isinstance(order, to_agent.Prepare):
            self._stand_down("it is to prepare for another node")
            self._member.preparation = Preparation(order, self._member.obeyed)
            self._orders.put(order)
        elif preparation is None:
            self._orders.put(order)
        elif self._fits(preparation, order):
            self._take_prepared(preparation, order)
        else:
            self._stand_down(f"it is to become node {order.node}")
            self._orders.put(order)

    def _fits(self, preparation: Preparation, order: to_agent.TakeOver) -> bool:
        prepared, epoch = preparation.order, self._member.epoch
        same = (prepared.node, prepared.ranks, prepared.incarnations) == (
            order.node,
            order.ranks,
            order.incarnations,
        )
        fetches = bool(order.records or order.nested) or order.own_state
        return same and epoch is not None and fetches

    def _take_prepared(self, preparation: Preparation, order: to_agent.TakeOver) -> None:
        member, epoch = self._member, self._member.epoch
        assert epoch is not None and member.records is not None
        preparation.taken, preparation.former, self.room = True, order.former, None

        def arrange(found: list[between_agents.Keep] | None) -> None:
            if self._member.preparation is not preparation or epoch.dropped:
                return
            self._put_in_place(epoch, found)
            self._take(epoch, order)
            for rank in epoch.ranks.values():
                rank.ready = False  # it reports so again when it has read its records
                member.send_to_rank(rank, to_rank.TakeUp())
                if rank.over is not None:
                    member.report(
                        from_agent.RankDied(
                            rank.number,
                            rank.incarnation,
                            rank.over,
                            rank.left,
                            rank.raised,
                            rank.pid,
                            rank.traceback,
                        )
                    )
            # the node is lost, and the job waits for it: it cannot be returned
            if not (order.former or order.nested or order.own_state):
                self.moved()

        if order.own_state:
            arrange([])
            return
        self._ask(epoch, order, lambda found: member.call(lambda: arrange(found)))

    def _take(self, epoch: Epoch, order: to_agent.TakeOver) -> None:
        member = self._member
        epoch.generation, epoch.interruption, epoch.protected = (
            order.generation,
            order.interruption,
            not order.restart,
        )
        epoch.page.interrupt(order.interruption)
        for rank in epoch.ranks.values():
            rank.left = store.left_behind(epoch.directory, rank.local, rank.number)
        assert member.managers is not None and member.records is not None
        member.node = order.node
        self._monitor.begin(epoch)
        member.records.begin(order.node, epoch)
        member.managers.be_node(order.node)
        member.report(
            from_agent.NodeTaken(
                order.node,
                member.name,
                *member.addresses,
                tuple(r.left for r in epoch.ranks.values()),
                member.faults,
            )
        )

    def stand_down(self, order: to_agent.StandDown) -> None:
        preparation, self._broken_off = self._member.preparation, None
        if preparation is not None and preparation.order.node == order.node:
            self._stand_down(order.reason)
        elif preparation is None and self.room is None and self._member.node == order.node:
            self._give_back(order)

    def _give_back(self, order: to_agent.StandDown) -> None:
        """Have a node no longer: the job goes on without its ranks."""
        member = self._member
        if member.epoch is None or not all(r.away for r in member.epoch.ranks.values()):
            log.error("this agent keeps node %d, which has ranks: %s", order.node, order.reason)
            return
        assert member.managers is not None
        log.warning("this launcher becomes a standby: %s", order.reason)
        self.room, self.idle, self._moved = len(member.epoch.ranks), True, None
        member.stopping()
        member.managers.be_node(STANDBY)
        member.announce()
        member.news.set()

    def _stand_down(self, reason: str) -> None:
        member = self._member
        preparation, member.preparation = member.preparation, None
        if preparation is None:
            return
        assert member.managers is not None
        log.warning("this standby does not become node %d: %s", preparation.order.node, reason)
        self.room = len(preparation.order.ranks) if self.room is None else self.room
        for rank in member.epoch.ranks.values() if member.epoch is not None else ():
            self._processes.kill(rank)
        member.stopping()
        member.managers.be_node(STANDBY)
        member.announce()

    def leave(self) -> None:
        """Stand down for good: the job is over, or continues without this agent."""
        self._stand_down("it is no longer needed")
        if self.room is not None:
            self._orders.put(None)

    # -- while it prepares -------------------------------------------------------------------------

    def moved(self) -> None:
        """The node's ranks have their state: it stays with this agent."""
        if self._member.preparation is not None:
            if self._member.epoch is not None:  # the order that fences that agent may be lost
                self._member.epoch.former = self._member.preparation.former
            self._moved, self._member.preparation = self._member.preparation.order, None

    def holds(self, order: Order | None) -> bool:
        """Whether the launcher must continue with `order`, or with the node that it has had from
        the start (None); otherwise it waits for the next order."""
        if self.idle or order is None:
            return not self.idle
        preparation = self._member.preparation
        current = preparation.order if preparation is not None else self._moved
        return isinstance(order, to_agent.TakeOver) or order is current

    def ready(self, epoch: Epoch) -> None:
        """A rank waits for orders; once all do, report that the node is prepared."""
        ready = sum(r.ready for r in epoch.ranks.values())
        log.info("%d of %d ranks of the node to be taken over are ready", ready, len(epoch.ranks))
        if self._member.preparation is not None and ready == len(epoch.ranks):
            self._member.preparation.ready = True
            self._member.report(
                from_agent.NodePrepared(self._member.preparation.order.node, self._member.name)
            )

    def died(self, rank: Rank) -> None:
        after = f" after {rank.raised}" if rank.raised else ""
        self._fail(f"rank {rank.number} {rank.over}{after}")

    def _fail(self, why: str) -> None:
        preparation = self._member.preparation
        if preparation is not None:
            self._member.report(
                from_agent.PreparationFailed(preparation.order.node, self._member.name, why)
            )
            self._stand_down(why)

    @property
    def prepares(self) -> values.Preparation | None:
        """The move to report to a manager that did not order it, if any."""
        preparation, order = self._member.preparation, self._broken_off
        if preparation is not None and not preparation.taken:
            order = preparation.order
        if order is None:
            return None
        return values.Preparation(
            order.node,
            order.epoch,
            order.incarnations if order is not self._broken_off else (),
            preparation is not None and preparation.ready,
            order.reason,
        )

    def undecided(self, manager: tuple[int, str]) -> bool:
        """Whether it would be open who has the node once `manager` is acknowledged: a report sent
        now might then be wrong."""
        preparation = self._member.preparation
        taken = preparation is not None and preparation.taken
        return taken and preparation is not None and preparation.manager != manager

    def look_at_manager(self) -> None:
        """Another manager may be in charge. Preparations stay until it decides. A node that is
        being taken over stays here if its ranks have their state, since no other agent has it;
        otherwise its former agent keeps it."""
        preparation, epoch = self._member.preparation, self._member.epoch
        if preparation is None or preparation.manager == self._member.obeyed:
            return
        preparation.manager = self._member.obeyed
        if not preparation.taken:
            return
        if epoch is not None and epoch.has_state:
            log.warning("node %d stays here: its ranks have their state", preparation.order.node)
            self.moved()
            return
        self._broken_off = preparation.order
        self._stand_down("the manager that ordered it is gone")
