"""Admits, refuses and fences agents and standbys, and handles their loss.

An agent registers for its node. The answer is Admit, Refuse (final), Fence (another agent has the
node: this one ends its ranks and leaves) or StandDown (it waits again). If another agent has the
node and nothing is protected yet, that agent may be dead, so it is challenged first. A standby may
be given a node once it is on the roster (core.election).
"""

from __future__ import annotations

from collections.abc import Callable

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.election.election import STANDBY
from taskd.core.incident.machine import Recovery
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, RankState
from taskd.core.job.topology import Node
from taskd.core.lifecycle.forming import Forming
from taskd.core.nodes.claims import Claims
from taskd.core.nodes.pods import Pods
from taskd.core.nodes.succession import Succession
from taskd.messages import from_agent, from_rank, to_agent
from taskd.messages.values import KEEPERS, Position

OVER = "the job is over"


class Admission:
    def __init__(
        self,
        job: JobState,
        recovery: Recovery,
        pause: Pause,
        forming: Forming,
        succession: Succession,
        claims: Claims,
        pods: Pods,
        drop: Callable[[str], None],
    ) -> None:
        """`drop`: forgets everything about the processes of before a restart; takes the reason."""
        self._job, self._recovery, self._pause = job, recovery, pause
        self._forming, self._succession, self._drop = forming, succession, drop
        self._claims, self._pods = claims, pods
        # node -> registration that waits for the challenge of the node's agent
        self._applicants: dict[int, from_agent.AgentJoined] = {}
        # standbys not on the roster yet
        self._standbys: dict[str, from_agent.StandbyJoined] = {}

    # -- agents ------------------------------------------------------------------------------------

    def joined(self, event: from_agent.AgentJoined, now: float) -> list[e.Event]:
        """Handle a registration. Returns the events it implies, which may have been lost with the
        previous connection; known ones change nothing."""
        job, topology = self._job, self._job.topology
        if event.agent in topology.stood_down:
            job.say(to_agent.StandDown(event.agent, event.node, "the node stays where it is"))
            return []
        if self._claims.holds(event, now):
            return []
        known = topology.nodes.get(event.node)
        # The agent of a lost node may be unknown: perhaps the previous manager gave it to this one.
        unknown = known is not None and known.lost and not known.agent
        another = known is not None and known.agent != event.agent and not unknown
        if another and known is not None and known.agent == event.former and not job.protected:
            another = False  # it has the node from that agent
        ours = known is not None and known.agent == event.agent
        # before any generation, the challenge shows which of the two is alive
        asks = another and known is not None and known.living and job.generation == 0
        if self._pods.next(event, known):
            another = False
        elif (
            (job.election.stranger(event.agent) and not ours and not asks)
            or (known is not None and known.assignee)
            or (another and job.protected)
            # the job goes on without it: it may come back as a standby
            or (known is not None and known.lost and job.protected and topology.gone(known))
        ):
            self._turn_away(event, known)
            return []
        if another and known is not None and known.living:
            self._applicants[event.node] = event
            job.say(c.Challenge(event.node))
            return []
        each = job.settings.ranks_per_node
        refusal = (
            f"it has {len(event.ranks)} ranks, and the manager was started for {each} on each node:"
            " give --nproc_per_node and manager.py's proc_per_node the same number"
            if len(event.ranks) != each
            else topology.join(
                event.node,
                event.ranks,
                event.store,
                event.epoch,
                event.agent,
                event.records,
                event.faults,
            )
        )
        if refusal:
            job.say(c.Refuse(event.agent, event.node, refusal))
            return []
        self._admit(event, known, unknown, now)
        return self._news(event, known)

    def may(self, holder: int, node: int, agent: str, *, fetch: bool) -> tuple[int, ...] | None:
        """Return the ranks of `node` if `agent` may store their records on node `holder` (with
        `fetch`: read them from there), else None."""
        topology, election = self._job.topology, self._job.election
        if fetch:
            granted = topology.may_fetch(holder, node, agent)
            if election.candidate.term > 1 and agent in election.roster.members:
                granted = granted or topology.had_been_given(node, agent)
        else:
            granted = topology.may_keep(holder, node, agent)
        if not granted:
            return None
        each, known = self._job.settings.ranks_per_node, topology.nodes.get(node)
        return known.ranks if known else tuple(range(node * each, node * each + each))

    def _turn_away(self, event: from_agent.AgentJoined, known: Node | None) -> None:
        why = "this one was replaced, or has the --node_rank of another node"
        again = event.agent in self._job.fenced
        self._job.fence(event.agent, event.node, f"node {event.node} has another agent: {why}")
        if known is not None and known.living and known.agent != event.agent and not again:
            self._job.say(c.Challenge(event.node))

    def _admit(
        self, event: from_agent.AgentJoined, known: Node | None, unknown: bool, now: float
    ) -> None:
        job, topology = self._job, self._job.topology
        job.election.arrive(event.agent, event.node, event.records)
        job.say(c.Admit(event.agent, event.node))
        job.recall(event.switches)
        same = known is not None and known.epoch == event.epoch
        if known is not None and known.lost and not job.protected:
            self._started_anew(event, now)  # its pod was replaced, or it was only cut off
        elif known is not None and known.lost and (unknown or same):
            self._came_back(event, now)
        elif not same:
            self._started_anew(event, now)
        node = topology.nodes[event.node]
        if event.keepers and not node.keepers:
            # Chosen by an earlier manager. Repeat the order: another agent may have a keeper's node
            # by now, and the order that said so may have been lost with the manager.
            node.keepers = tuple(k for k in event.keepers if k != event.node)[:KEEPERS]
        if job.protected and (event.keepers != node.keepers or known is not None):
            # the order was lost or is on its way; it may even name the same nodes, one of which has
            # another agent by now
            node.keepers_notified = False
            # if it is the same agent, no other node's keepers change: many agents may register at
            # once
            again = known is not None and known.living and known.agent == event.agent
            self._recovery.nodes.keep_records(event.node if again else None)
        self._succession.keeps(event)
        if event.generation and not job.protected and topology.complete:
            self._succession.take_over(now)

    def _news(self, event: from_agent.AgentJoined, known: Node | None) -> list[e.Event]:
        incarnations = _incarnations(event)
        news: list[e.Event] = []
        if event.generation == 0:
            news += [
                from_rank.RankJoined(rank, incarnations[rank], event.handlers, event.dumps)
                for rank in event.joined
            ]
        if known is not None and known.epoch == event.epoch:
            why = "died while its agent was out of reach"
            left = event.left or (None,) * len(event.dead)
            news += [
                from_agent.RankDied(rank, incarnations[rank], why, position)
                for rank, position in zip(event.dead, left, strict=False)
            ]
        return news

    def _started_anew(self, event: from_agent.AgentJoined, now: float) -> None:
        """The node's processes are new to this manager: first contact, a restart of all ranks, or a
        new manager."""
        job, left = self._job, _left(event)
        self._succession.learn(event)
        self._forming.some_joined = self._forming.some_joined or bool(event.joined)
        for rank, incarnation in _incarnations(event).items():
            ranks = job.away if rank in job.away else job.ranks
            before = ranks[rank]
            ranks[rank] = RankState(
                incarnation,
                rank in event.joined,
                alive=rank not in event.dead,
                left=left.get(rank),
                # of the device, not of the process
                unusable=before.unusable,
                resetting=before.resetting,
            )
        if event.generation == 0:
            # the scripts start from the beginning: the state protected before is gone
            job.protected, job.released, job.unprotected = False, -1, event.unprotected
            self._drop("the processes of a node were restarted")
            self._forming.start(now)
            self._succession.stop()
        else:
            self._succession.gather(now)
            job.released = max(job.released, event.released)
        job.generation = max(job.generation, event.generation)
        job.interruption = max(job.interruption, event.interruption)

    def _came_back(self, event: from_agent.AgentJoined, now: float) -> None:
        """A lost node is reachable again before a standby took it over: interrupt its ranks like
        all others. Replacements ordered by the previous manager remain replacements."""
        job, left = self._job, _left(event)
        for number, incarnation in _incarnations(event).items():
            if (rank := job.ranks.get(number)) is not None:
                rank.incarnation, rank.left = incarnation, left.get(number)
                rank.alive = number not in event.dead
            else:
                job.away[number].incarnation = incarnation
        self._pause.remind()
        dead = [r for r in event.dead if r in job.ranks]  # an agent names those that are away, too
        how = "".join(f"; rank {r}: died while its node was out of reach" for r in dead)
        incident = self._recovery.join(f"node {event.node} is reachable again{how}", now=now)
        incident.new |= set(event.new) & job.ranks.keys()
        incident.ready |= set(event.ready) & job.ranks.keys()
        self._recovery.again(now, frozenset(dead))
        self._recovery.nodes.keep_records()

    def answered(self, event: e.AgentAnswered, now: float) -> None:
        """The agent of a node is alive: refuse the other one that has registered for it."""
        applicant = self._applicants.pop(event.node, None)
        if applicant is not None:
            self._job.say(
                c.Refuse(
                    applicant.agent,
                    event.node,
                    f"node {event.node} already has a living agent: give each node its own"
                    " --node_rank, or stop that agent",
                )
            )

    def left(self, event: from_agent.AgentLeft, now: float) -> None:
        """The launcher of a node has exited."""
        job, topology = self._job, self._job.topology
        node = topology.nodes.get(event.node)
        if node is None or node.lost:
            return
        why = f": {event.why.removeprefix('The job ends: ')}" if event.why else ""
        replaceable = job.settings.survives_nodes or self._recovery.moves(event.node)
        # a launcher that was not stopped by a signal gave up, and would give up again
        waits = event.stopped and self._pods.applies
        if not event.ok:
            job.election.depart(node.agent)
        if not event.ok and job.protected and (replaceable or waits):
            self._recovery.lost(event.node, f"its launcher has left{why}", now)
            return
        if event.stopped and self._pods.lost(event.node, f"its launcher has left{why}", now):
            return
        node.ended = event.ok
        if not event.ok:
            job.end(False, f"node {event.node} ended with an error{why}", event.ending)
        elif topology.complete and all(
            n.ended or topology.gone(n) for n in topology.nodes.values()
        ):
            job.end(True, "every node ended well")

    def lost(self, event: e.AgentLost, now: float) -> list[e.Event]:
        """Handle a silent agent. Returns the registration that waited for the verdict."""
        job = self._job
        node = job.topology.nodes.get(event.node)
        if node is not None:
            job.election.depart(node.agent)
        if node is not None and not node.lost and node.ended is None:
            if job.protected:
                self._recovery.lost(event.node, event.why, now)
            elif not self._pods.lost(event.node, event.why, now):
                node.lost = True
                job.end(False, f"node {event.node} is lost: {event.why}")
        applicant = self._applicants.pop(event.node, None)
        return [applicant] if applicant is not None else []

    # -- standbys ----------------------------------------------------------------------------------

    def standby_joined(self, event: from_agent.StandbyJoined, now: float) -> list[e.Event]:
        """Handle a standby's registration. Returns the agents' registrations that waited for it."""
        election = self._job.election
        self._job.topology.stood_down.discard(event.agent)
        election.arrive(event.agent, STANDBY, event.records)
        election.candidate.want(event.agent, True)
        self._standbys[event.agent] = event
        self.roster_changed(now)
        return [*self._claims.stands(event.agent)]

    def roster_changed(self, now: float) -> None:
        """Admit the standbys that are now on the roster: they may be given nodes."""
        candidate = self._job.election.candidate
        admitted = [a for a in self._standbys if candidate.fresh or candidate.member(a)]
        for agent in admitted:
            self._admit_standby(self._standbys.pop(agent), now)

    def _admit_standby(self, event: from_agent.StandbyJoined, now: float) -> None:
        job, topology = self._job, self._job.topology
        if any(event.agent in (n.agent, n.assignee) for n in topology.nodes.values()):
            return  # it registered before the order that gave it a node arrived
        if event.agent not in topology.standbys:
            job.note(f"standby {event.agent[:8]} waits for a node; it can run {event.ranks} ranks")
        topology.standbys[event.agent] = event.ranks
        self._recovery.standby(now)

    def standby_lost(self, event: e.StandbyLost, now: float) -> None:
        job, topology = self._job, self._job.topology
        self._standbys.pop(event.agent, None)
        job.election.depart(event.agent)
        job.election.candidate.want(event.agent, False)
        topology.reserved.pop(event.agent, None)
        topology.stood_down.discard(event.agent)
        if topology.standbys.pop(event.agent, None) is not None:
            job.note(f"standby {event.agent[:8]} is lost: {event.why}")
            return
        number = next((i for i, n in topology.nodes.items() if n.assignee == event.agent), None)
        if number is not None:
            why = f"standby {event.agent[:8]}, which was to take it over: {event.why}"
            if job.protected or not self._pods.lost(number, why, now):
                self._recovery.lost(number, why, now)

    def taken(self, event: from_agent.NodeTaken, now: float) -> None:
        """A standby has carried out a TakeOver."""
        job, topology = self._job, self._job.topology
        node = topology.nodes.get(event.node)
        if event.agent in topology.stood_down:  # the order has not reached it yet
            job.say(to_agent.StandDown(event.agent, event.node, "the node stays where it is"))
            return
        if node is None or node.assignee != event.agent or len(event.left) != len(node.ranks):
            job.fence(event.agent, event.node, f"node {event.node} was not given to it")
            return
        topology.join(
            event.node,
            node.ranks,
            event.store,
            node.epoch + 1,
            event.agent,
            event.records,
            event.faults,
        )
        job.election.arrive(event.agent, event.node, event.records)
        job.say(c.Admit(event.agent, event.node))
        for rank, left in zip(node.ranks, event.left, strict=True):
            state = job.rank(rank)
            # another machine has other devices
            state.left, state.unusable, state.resetting = left, "", ""
        job.note(f"node {event.node} is taken over by standby {event.agent[:8]}")
        if self._pause.step is not None:
            self._pause.remind()
        self._recovery.nodes.keep_records()
        self._recovery.advance(now)

    def end(self) -> None:
        """The job is over."""
        for node, applicant in self._applicants.items():
            self._job.say(c.Refuse(applicant.agent, node, OVER))
        self._applicants.clear()


def _incarnations(event: from_agent.AgentJoined) -> dict[int, int]:
    """Return the incarnations of the node's ranks."""
    numbers = event.incarnations or (0,) * len(event.ranks)
    return dict(zip(event.ranks, numbers, strict=True))


def _left(event: from_agent.AgentJoined) -> dict[int, Position | None]:
    """Return the positions that the predecessors of dead and new processes left behind."""
    return dict(zip((*event.dead, *event.new), event.left, strict=False))
