"""The nodes and standbys of the world: they start, fail, return, move and are taken over."""

from __future__ import annotations

from taskd.core import commands as c
from taskd.core import events as e
from taskd.messages import from_agent, from_rank, to_agent, to_rank
from taskd.messages.values import FaultCount, Position, Preparation
from tests.core.actors import (
    COMMITTED,
    ENDED,
    FINISHED,
    HELD,
    PAUSED,
    SAVES,
    Former,
    Node,
    Part,
    Rank,
)
from tests.core.chains import left_behind


class Cluster(Part):
    def start(self, node: Node) -> None:
        """The launcher starts all ranks of a node."""
        for rank in node.ranks:
            fresh = Rank(
                rank.number, rank.node, replica_set=rank.replica_set, immortal=self.likely(0.01)
            )
            rank.__dict__.update(fresh.__dict__)
            self.world.chains.start(rank)
            self.world.invariants.newest[rank.number] = 0
            self.later(
                rank, self.chance.uniform(0.5, 3), lambda r=rank: self.world.training.join(r)
            )
        node.protected, node.generation, node.pause = False, 0, None
        node.between = False
        node.keepers, node.kept_by, node.unkept = (), (), None
        node.stand_ins, node.resumed, node.building = (), 0, ()
        node.files, node.taken, node.copies = {}, {}, {}
        self.world.electorate.connect(node.agent)
        self.announce(node)

    def announce(self, node: Node) -> None:
        if node.between:
            return  # it registers when its processes start
        self.say(node, self.announcement(node))
        for rank in node.ranks:
            if rank.quit:
                self.tell(rank, from_agent.RankEnded, rank.step, rank.left, rank.left_loop)
        ended = [r for r in node.ranks if r.mode == ENDED]
        for rank in ended:  # its earlier reports may have been lost
            self.tell(rank, from_agent.RankEnded)
        if ended and len(ended) == sum(not r.away for r in node.ranks):
            self.say(node, from_agent.AgentLeft(node.number, True))

    def announcement(self, node: Node) -> from_agent.AgentJoined:
        joined = tuple(r.number for r in node.ranks if r.begun or r.incarnation)
        dead = [r for r in node.ranks if r.away or (not r.alive and not r.quit)]
        new = [r for r in node.ranks if r.alive and r.stateless and not r.away]
        living = [r for r in node.ranks if r.alive and not r.stateless]
        held = tuple(r.number for r in living if r.mode in (HELD, FINISHED) or r.ordered)
        return from_agent.AgentJoined(
            node.number,
            tuple(r.number for r in node.ranks),
            (f"node-{node.number}", 7000),
            node.epoch,
            tuple(r.incarnation for r in node.ranks),
            joined,
            held if node.protected else (),
            tuple(r.number for r in dead),
            tuple(r.number for r in new),
            tuple(r.number for r in new if r.mode == HELD),
            tuple(r.left for r in (*dead, *new)),
            node.generation if node.protected else 0,
            node.interruption,
            node.agent,
            (node.agent, 8000),
            node.keepers,
            self.world.chains.keeps(node),
            moves_to=node.moves_to,
            former=node.former,
            moving=node.moving,
            switches=node.switches,
            faults=self._faults(node),
            condemned=node.condemned,
            resumed=node.resumed,
            stand_ins=node.stand_ins,
        )

    def _faults(self, node: Node) -> FaultCount:
        return FaultCount(node.faults, self.world.seed % 3 if self.world.limited else None)

    def standby(self, agent: str) -> None:
        """Register a waiting standby, again if a new manager orders it."""
        again = agent in self.world.standbys
        self.world.standbys.add(agent)
        if not again:
            self.world.electorate.connect(agent)
        order = self.world.prepared.get(agent)
        prepares = self.world.broken_off.get(agent)
        if order is not None:
            prepares = Preparation(
                order.node, order.epoch, order.incarnations, agent in self.world.ready, order.reason
            )
        each = self.world.settings.ranks_per_node
        self.world.deliver(from_agent.StandbyJoined(agent, each, ("", 0), prepares))
        if self.likely(0.1) and not again:
            self.after(self.chance.uniform(0.0, 30.0), lambda: self.lose_standby(agent))

    def lose_standby(self, agent: str) -> None:
        if agent in self.world.standbys:
            self.counts["standby lost"] += 1
            self.world.standbys.discard(agent)
            self.world.prepared.pop(agent, None)
            self.world.deliver(e.AgentDisconnected(agent))
            self.world.deliver(e.StandbyLost(agent, "its connection has ended"))

    def fence(self, agent: str) -> None:
        """Fence an agent: its ranks end, and its messages are ignored."""
        self.world.fenced.add(agent)
        self.world.standbys.discard(agent)
        self.world.formers = {
            n: f for n, f in self.world.formers.items() if f.node["agent"] != agent
        }
        for node in self.world.nodes:
            if node.agent == agent and self.world.elastic and node.cut and not node.gone:
                self.counts["fenced while it is cut off"] += 1
            elif node.agent == agent:
                self.vanish(node)

    def vanish(self, node: Node) -> None:
        node.gone = True
        for rank in node.ranks:
            rank.record = rank.record if rank.stateless or not rank.alive else self.kept(rank)
            rank.alive = False

    def has_records(self, order: to_agent.TakeOver, node: Node) -> bool:
        """Whether one of those that the order names has the records of the lost, or moving,
        node."""
        living = {n.agent for n in self.world.nodes if not n.gone}
        named = {host for host, _ in order.records}
        found = node.agent in named or bool(named & living & set(node.kept_by))
        self.counts["records found" if found else "records lost"] += 1
        return found

    def kept(self, rank: Rank) -> Position:
        """Return the keeper's record of a rank: the record of a step reaches the keeper before the
        rank enters the step's first collective."""
        begun = rank.stage != COMMITTED or self.chance.random() < 0.5
        last = rank.step if begun else rank.step - 1
        steps = frozenset(s for s in range(last - 2, last + 1) if s >= 0)
        return Position(max(last, 0), None, frozenset(), steps, replica_set=rank.replica_set)

    def lose_node(self, node: Node) -> None:
        """Kill a node's processes, or cut it off for a while."""
        if node.gone or node.cut:
            return
        former = self.world.formers.get(node.number)
        if former is not None and node.agent == former.node["agent"]:
            self.world.handover.lose(node.number, former)
            return
        agent = node.agent
        if self.chance.random() < 0.5:
            self.counts["node lost"] += 1
            self.vanish(node)
        else:
            self.counts["node cut"] += 1
            node.cut = True
            for rank in node.ranks:
                rank.deaf = True
            self.after(
                self.chance.choice([1.5, self.chance.uniform(1.0, 90.0)]),
                lambda: self.come_back(node, agent),
            )
        self._notice(node, self.chance.choice([0.05, 1.2]))

    def stop_launcher(self, node: Node) -> None:
        """A signal stops the launcher, which says so; that may be lost with its connection."""
        former = self.world.formers.get(node.number)
        if former is not None and node.agent == former.node["agent"]:
            self.world.handover.lose(node.number, former)
            return
        self.counts["launcher stopped"] += 1
        why = "the launcher was stopped by SIGTERM"
        self.say(node, from_agent.AgentLeft(node.number, False, why, True))
        self.vanish(node)
        self._notice(node, 1.2)

    def _notice(self, node: Node, after: float) -> None:
        """The manager learns that the connection has ended, if it still counts on the agent."""
        manager, agent = self.world.manager, node.agent

        def notice() -> None:
            known = self.world.coordinator.job.topology.nodes.get(node.number)
            left = node.gone and known is not None and known.agent != agent
            if (manager, agent) == (self.world.manager, node.agent) and not left:
                self.world.deliver(e.AgentDisconnected(agent))
                lost = e.AgentLost(node.number, "its connection has ended")
                self.world.wires[node.number].hear(lost)

        self.after(after, notice)

    def come_back(self, node: Node, agent: str) -> None:
        if node.agent == agent and node.cut and not node.gone:
            self.counts["node comes back"] += 1
            node.cut, node.sent = False, self.world.now
            if agent in self.world.fenced:  # the manager that knows it answers so
                self.vanish(node)
                return
            node.received = self.world.now
            self.world.wires[node.number].begin()
            if not self.world.over:
                self.world.electorate.connect(agent)
                self.announce(node)

    def take_over(self, order: to_agent.TakeOver) -> None:
        self.world.broken_off.pop(order.agent, None)
        if order.former:
            self.world.wires[order.node].order(order)
            former = Former(order.agent, self.world.manager)
            former.keep(self.world.nodes[order.node])
            self.world.formers[order.node] = former
            if self.likely(0.6):
                self.after(
                    self.chance.uniform(0.0, 1.5),
                    lambda: self.world.handover.lose(order.node, former),
                )
        if order.nested:
            self.world.shrinking.grows(order)
        if order.agent not in self.world.standbys or self.likely(0.05):
            return  # it is gone, or silent
        manager, prepared = self.world.manager, self.world.prepared.pop(order.agent, None)
        asked = prepared and (prepared.node, prepared.incarnations)
        ready = asked == (order.node, order.incarnations)
        assert ready or not (order.former or order.nested), (
            "a node moves to a standby that is not ready for it"
        )
        self.after(self.chance.uniform(0.01, 1.5), lambda: self.taken(order, manager))

    def prepare(self, order: to_agent.Prepare) -> None:
        if order.agent not in self.world.standbys or self.likely(0.05):
            return
        assert order.agent not in self.world.prepared
        self.world.prepared[order.agent] = order
        self.world.ready.discard(order.agent)
        self.world.broken_off.pop(order.agent, None)
        why = "rank 0 left with exit code 1" if self.likely(0.2) else ""
        if order.nested and not self.world.shrinking.nested(order):
            why = "its records cannot be fetched"

        def done() -> None:
            if (
                self.world.prepared.get(order.agent) is not order
                or order.agent not in self.world.standbys
            ):
                return
            if why:
                del self.world.prepared[order.agent]
            else:
                self.world.ready.add(order.agent)
            self.counts["not prepared" if why else "prepared"] += 1
            told = (
                from_agent.PreparationFailed(order.node, order.agent, why)
                if why
                else from_agent.NodePrepared(order.node, order.agent)
            )
            self.world.deliver(told)

        self.after(self.chance.choice([0.1, 0.1, self.chance.uniform(0.1, 5.0)]), done)

    def stand_down(self, agent: str, number: int) -> None:
        """Let the standby wait again, and give the node back to its former agent."""
        self.world.prepared.pop(agent, None)
        self.world.broken_off.pop(agent, None)
        former, node = self.world.formers.get(number), self.world.nodes[number]
        if agent == node.agent and not node.gone and not node.cut:
            self.give_back(node)
        if former is not None and former.assignee == agent:
            there = node.agent == agent and not node.gone and not node.cut
            self.world.handover.put_back(number)
            if there:
                self.after(
                    0.01, lambda: self.standby(agent) if agent not in self.world.fenced else None
                )
            self.counts["put back"] += 1

    def give_back(self, node: Node) -> None:
        """The launcher of a node without ranks becomes a standby."""
        if not all(rank.away for rank in node.ranks):
            return
        self.counts["launcher becomes a standby"] += 1
        agent, node.agent = node.agent, ""
        self.vanish(node)
        self.after(0.01, lambda: self.standby(agent) if agent not in self.world.fenced else None)

    def admitted(self, command: c.Admit) -> None:
        former = self.world.formers.get(command.node)
        if former is not None and former.node["agent"] == command.agent:
            self.counts["former gets its node back"] += 1
            node = self.world.nodes[command.node]
            there = node.agent == former.assignee and not node.gone and not node.cut
            assert not there, f"{former.assignee} has node {command.node}, with its ranks' state"
            self.world.handover.put_back(command.node)
        if self.world.nodes[command.node].agent == command.agent:
            self.world.nodes[command.node].joined = self.world.manager
            self.world.wires[command.node].admit()

    def taken(self, order: to_agent.TakeOver, manager: int) -> None:
        former = self.world.formers.get(order.node)
        moves = former is not None and former.assignee == order.agent
        if (
            order.agent not in self.world.standbys
            or manager != self.world.manager
            or ((order.former or order.nested) and not moves)
        ):
            return
        self.world.standbys.discard(order.agent)
        old = self.world.nodes[order.node]
        if former is not None and order.former:
            old.moves_to = order.agent
            former.keep(old)
            for rank in old.ranks:
                at = self.world.training.position(rank)
                found = Position(
                    at.step, None, at.final, at.provisional, replica_set=rank.replica_set
                )
                rank.record = found if rank.alive else None
        at = order.epoch, order.generation, True, order.interruption
        fresh = Node(old.number, old.ranks, *at, agent=order.agent, joined=self.world.manager)
        whole = self.has_records(order, old)
        # what they have of the former agent stays until they keep the new one's
        living, named = {n.agent for n in self.world.nodes if not n.gone}, dict(order.records)
        fresh.kept_by = tuple(host for host in old.kept_by if host in living and host in named)
        left = tuple(r.record if whole else None for r in old.ranks)
        if self.world.elastic:
            fresh.files = self.world.shrinking.fetched(order)
            left = tuple(left_behind(fresh.files[r.number], r.replica_set) for r in old.ranks)
        self.world.wires[old.number].begin()
        old.__dict__.update({**fresh.__dict__, "sent": self.world.now, "received": self.world.now})
        for rank, incarnation in zip(old.ranks, order.incarnations, strict=True):
            kept = rank.record
            gone = Rank(rank.number, rank.node, incarnation - 1, begun=True, alive=False)
            rank.__dict__.update({**gone.__dict__, "replica_set": rank.replica_set})
            rank.record = rank.left = kept if whole else None
            if self.world.elastic:
                rank.record = rank.left = left_behind(fresh.files[rank.number], rank.replica_set)
            self.world.agents.replace(rank, incarnation)
        self.say(
            old,
            from_agent.NodeTaken(
                old.number,
                old.agent,
                (f"node-{old.number}", 7001),
                (old.agent, 8000),
                left,
                self._faults(old),
            ),
        )

    def hold(self, rank: Rank, command: to_rank.AskPosition) -> None:
        if rank.mode in (PAUSED, FINISHED) and not rank.released:
            at, copies = self.world.training.position(rank), self.likely(0.8)
            self.tell(rank, from_rank.RankPosition, command.dump, at, copies)

    def save(self, rank: Rank, command: SAVES) -> None:
        if not self._takes(rank, command):
            return
        interruption = getattr(command, "interruption", 0)
        if self.likely(0.1):
            self.world.training.die(rank, "was killed by SIGKILL")
        elif self.likely(0.05):
            why = "OSError: disk full"
            if command.dump:
                self.tell(rank, from_rank.StateSaved, interruption, (), why, command.dump)
                return
            self.tell(rank, from_rank.RankFailed, command.generation, why)
        else:
            whole = isinstance(command, to_rank.SaveState)
            copied = isinstance(command, to_rank.CopyState)
            beside = " beside training" if whole and command.copied else ""
            self.counts[
                f"state {'saved' if whole else 'copied' if copied else 'recorded'}{beside}"
            ] += 1
            files = (("state/x", 1, "ab"),) if whole else ()
            if copied:
                rank.copy = command.dump
            else:
                rank.whole = command.step
            self.tell(rank, from_rank.StateSaved, interruption, files, "", command.dump)

    def _takes(self, rank: Rank, command: c.Command) -> bool:
        if isinstance(command, to_rank.SaveState) and command.copied:
            return rank.alive and rank.mode != ENDED and rank.copy == command.dump
        if command.dump:
            return rank.mode in (PAUSED, FINISHED)
        return rank.mode == HELD and rank.interrupted <= command.interruption
