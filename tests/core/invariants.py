"""Invariants, checked at every command that the coordinator gives in a `World`."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.incident.phases import FINAL, Phase
from taskd.core.incident.state import Incident
from taskd.core.job.ladder import KEEPING, STRATEGIES
from taskd.messages import from_agent, from_rank, to_agent, to_operator, to_rank
from tests.core import kills
from tests.core.actors import FINISHED, PAUSED, SAVES
from tests.core.away import Away
from tests.core.plans import Plans
from tests.core.wire import SOON

if TYPE_CHECKING:
    from tests.core.world import Rank, World


class Invariants:
    def __init__(self, world: World) -> None:
        self.world, self._plans, self._away = world, Plans(world), Away(world)
        self.done: set[str] = set()  # requests that succeeded
        self._requests: set[str] = set()  # requests without an answer yet
        self._generation = self._interruption = self._interrupted = 0
        self.newest = {r.number: 0 for r in world.ranks}  # incarnation last ordered or announced
        # generation -> the digests reported to the coordinator
        self._restored: dict[int, dict[int, str]] = {}
        self._floor = 0  # no incident resumes before this step
        self._tellings: list[str] = []  # deaths reported since the last incident was closed
        self._rungs: dict[int, int] = {}  # incident -> its current rung
        self._standing = False  # all ranks are paused, and the coordinator knows it
        self._incident: object = None
        self._returns: from_agent.AgentJoined | None = None  # of a lost node
        self._last = 0  # number of the last Interrupt of this event, 0 for none

    def new_manager(self) -> None:
        """Forget what the previous manager knew; replacements it ordered that have not started are
        void."""
        self._generation = self._interruption = self._interrupted = 0
        self._tellings, self._rungs, self._standing = [], {}, False
        self._requests.clear()
        self.newest = {r.number: r.incarnation for r in self.world.ranks}

    def asked(self, request: str) -> None:
        self._requests.add(request)

    # -- around every event

    def before(self, event: e.Event) -> None:
        k = self.world.coordinator
        job, incident = k.job, k.recovery.incident
        self.world.electorate.hear(event)
        self._incident = incident
        # the node's orders may not have reached it
        lost = isinstance(event, from_agent.AgentJoined) and event.node in job.topology.lost
        self._returns = event if lost else None
        if lost and job.topology.nodes[event.node].agent == event.agent:  # it moves
            self.newest |= dict(zip(event.ranks, event.incarnations, strict=True))
        rank = getattr(event, "rank", None)
        known = job.ranks.get(rank) if rank is not None else None
        if known is None or getattr(event, "incarnation", 0) != known.incarnation:
            return
        if isinstance(event, from_rank.RankRestored):
            self._restored.setdefault(event.generation, {})[event.rank] = event.digest
        ordered = incident is not None and event.rank in incident.killed
        if isinstance(event, from_agent.RankDied) and job.protected and known.alive and not ordered:
            self._tellings.append(event.cause)

    def ordered(self, commands: list[c.Command]) -> None:
        """The orders that follow from the event, each of which is checked next."""
        numbers = [x.interruption for x in commands if isinstance(x, to_rank.Interrupt)]
        self._last = max(numbers, default=0)

    def after(self, commands: list[c.Command]) -> None:
        k = self.world.coordinator
        incident = k.recovery.incident
        self._standing = (
            incident is None
            and k.job.protected
            and k.pause.wanted
            and k.pause.all_paused
            and not k.job.over
        )
        assert not (k.job.over and self._requests), f"requests without an answer: {self._requests}"
        self.world.electorate.check()
        self._nothing_is_lost()
        self._records_are_kept()
        self._nothing_waits_after_a_move()
        if incident is None:
            return
        assert len(incident.timeline.entered) < 2000
        assert incident.phase not in FINAL or k.job.over
        evicted, killed = set(incident.evicted), set(incident.killed)
        # `dump` goes on without one that does not die
        saving = incident.strategy in KEEPING and killed <= evicted
        assert killed == evicted or saving or k.job.over, "evicted, but not killed"
        assert not incident.killed or incident.phase is Phase.INTERRUPT or k.job.over, (
            "only INTERRUPT waits for evicted ranks"
        )
        if incident.strategy:
            ladder = ("grow", "hot-switch", *STRATEGIES)
            known = (*incident.rungs, *self.world.settings.ladder)
            assert incident.strategy in known or k.job.over
            rung = ladder.index(incident.strategy)
            assert k.job.over or rung >= self._rungs.get(incident.number, 0), "down the ladder"
            assert k.job.over or all(ladder.index(f) < rung for f in incident.failed), (
                "at a rung that has failed, or below it"
            )
            self._rungs[incident.number] = rung

    def _nothing_is_lost(self) -> None:
        """A running manager that is connected to an agent soon knows its dead ranks, and all else
        the agent has sent."""
        world = self.world
        known = world.coordinator.job.ranks
        for wire in world.wires:
            wire.check()
            if not wire.settled or not world.coordinator.job.protected:
                continue
            for rank in wire.node.ranks:
                if (
                    not rank.alive
                    and rank.number in known
                    and rank.mode != "ended"
                    and not rank.quit
                    and world.now - max(rank.died, wire.since, world.woke) > SOON
                ):
                    state = known[rank.number]
                    assert (
                        not state.alive
                        or state.incarnation != rank.incarnation
                        or world.coordinator.job.over
                    ), f"{rank} is dead"

    def _nothing_waits_after_a_move(self) -> None:
        """A manager knows who has a node that was moving, and what standbys prepare for."""
        world, job = self.world, self.world.coordinator.job
        if not job.protected or job.over:
            return
        for number, former in world.formers.items():
            decided = former.manager == world.manager or former.lost
            # or none: each is turned away when it registers
            decided = decided or job.topology.gone(job.topology.nodes[number])
            assert decided, f"two agents have node {number}"
        for agent in world.prepared:
            known = agent not in job.topology.standbys or agent in job.topology.reserved
            assert known, f"{agent} prepares for nothing"

    def _records_are_kept(self) -> None:
        """Each node sends its records to two other nodes, as far as there are, and none for long to
        an agent that has no node any more."""
        world, job = self.world, self.world.coordinator.job
        quiet = job.protected and not job.over and world.coordinator.recovery.incident is None
        agents = {n.agent for n in world.nodes}
        for wire in world.wires:
            node = wire.node
            living = sum(n.living for n in job.topology.nodes.values())
            known = job.topology.nodes.get(node.number)
            enough = (
                not job.settings.survives_nodes
                or known is None
                or not known.living
                or len(node.kept_by) >= min(2, living - 1)
            )
            if not quiet or not wire.settled or (enough and agents.issuperset(node.kept_by)):
                node.unkept = None
            elif node.unkept is None:
                node.unkept = world.now
            else:
                late = world.now - node.unkept > SOON
                assert not late, f"node {node.number} copies to {node.kept_by}"

    def begins(self, rank: Rank) -> None:
        assert not self._standing, (
            f"rank {rank.number} begins step {rank.step}, but all ranks were reported paused"
        )

    def at_the_end(self) -> None:
        assert not self._requests

    # -- commands

    def check(self, command: c.Command) -> None:
        k = self.world.coordinator
        job, incident = k.job, k.recovery.incident
        assert job.generation >= self._generation and job.interruption >= self._interruption, (
            "a number decreased"
        )
        self._generation, self._interruption = job.generation, job.interruption
        if k.pods.waiting:  # its scripts begin anew
            self._tellings = []
        # two in one call, if the first has no rank to wait for
        if isinstance(command, to_rank.Interrupt):
            assert (
                command.interruption == self._interrupted
                if command.reason == "asked again"
                else command.interruption > self._interrupted
            )
            self._interrupted = command.interruption
        # the same event may have begun another round, whose Interrupt follows
        superseded = self._interrupted < self._last
        if isinstance(command, to_rank.Rebuild | to_rank.Restore | to_rank.Resume):
            assert command.interruption == job.interruption or superseded
            assert command.generation == job.generation
            assert incident is None or not incident.evicted or superseded, (
                "an evicted rank takes part in the rebuild"
            )
        self._away.check(command)
        if isinstance(command, to_rank.Rebuild):
            self._restored.pop(command.generation, None)  # of before all ranks were restarted
        dump = getattr(command, "dump", 0)
        if isinstance(command, SAVES) and dump:
            rank = self.world.ranks[command.rank]
            assert job.ranks[command.rank].alive
            if isinstance(command, to_rank.SaveState) and command.copied:
                same = rank.alive and rank.incarnation == job.ranks[command.rank].incarnation
                assert rank.copy == dump or not same, "it saves a copy that it has not made"
            else:
                assert incident is None
                if rank.mode in (PAUSED, FINISHED) and not rank.spoiled:
                    assert rank.position().clean == command.step, "it copies another step"
        elif isinstance(command, SAVES):
            rank = self.world.ranks[command.rank]
            assert incident is not None
            assert incident.strategy == "dump"
            assert command.interruption == job.interruption
            assert job.ranks[command.rank].alive
            assert command.rank not in incident.evicted
            assert not rank.stateless
            whole = isinstance(command, to_rank.SaveState) and rank.whole == command.step
            if not command.stripes and rank.alive and not rank.spoiled and not whole:
                assert rank.position().clean == command.step, (
                    "its memory does not hold the state of that step"
                )
        if isinstance(command, c.Admit) and self._returns is not None:
            self.newest |= dict(zip(self._returns.ranks, self._returns.incarnations, strict=True))
        if isinstance(command, to_agent.Seal):
            self.world.counts["sealed"] += 1
        if isinstance(command, to_agent.TakeOver):
            self._check_take_over(command)
        if isinstance(command, to_agent.Replace):
            assert command.incarnation == self.newest[command.rank] + 1, (
                "an incarnation is repeated or skipped"
            )
            assert {"recover-in-place", "recover"} & {*self._allowed(incident)}
            assert not job.ranks[command.rank].unusable, "a process for a device that takes none"
            assert not self.world.told_resets.get(command.rank), "it is being reset"
            self.newest[command.rank] = command.incarnation
        elif isinstance(command, to_agent.Kill):
            assert command.incarnation == self.newest[command.rank], (
                "a command to an old incarnation"
            )
            kills.check(self.world, command, self._allowed(incident))
        elif isinstance(command, to_rank.Restore):
            self._plans.check(command, self._floor, self.newest)
        elif isinstance(command, to_rank.Resume) and incident is not None:
            told = self._restored.get(command.generation, {})
            assert set(told) == set(job.ranks), "resumed before all had restored"
            present = [r for r in self.world.ranks if r.number in job.ranks]
            right = {r.number: f"{r.replica_set}-{command.step}" for r in present}
            # one that has no replica left is not compared with any
            of = Counter(r.replica_set for r in present)
            alone = {r.number for r in present if of[r.replica_set] == 1 and self.world.elastic}
            wrong = {n for n in told if told[n] != right[n]} - alone
            assert not wrong, f"resumed on different states {told}"
            assert all(r.alive for r in job.ranks.values()) or superseded
        elif isinstance(command, c.Closed):
            self._floor, self._tellings = max(self._floor, command.step), []
            assert command.seconds >= 0
            assert abs(sum(command.phases.values()) - command.seconds) < 1e-6
            assert command.tried[-1] == f"{command.strategy}: done"
            assert command.faults
            moved = any(re.search(" moves: | comes? back: ", fault) for fault in command.faults)
            assert command.strategy != "retry" or not command.ranks or moved, (
                "retry keeps every process"
            )
        elif isinstance(command, to_rank.Release):
            self._floor = max(self._floor, command.step)
            # all exited by themselves
            left = all(r.quit for r in self.world.ranks if r.number in job.ranks)
            assert left or command.step == self.world.total
        elif isinstance(command, to_agent.RestartAll):
            self._floor, self._tellings = 0, []  # the scripts begin anew
            self._restored.clear()
        elif isinstance(command, to_operator.Answer):
            self._check_answer(command)
        elif (
            isinstance(command, c.Note)
            and "wait in the same collective" in command.text
            and not re.search("failed|could not be repaired", command.text)
        ):
            self.world.counts["stuck found"] += 1
            # or it waits for a replacement that only the previous manager knew of, or for a rank
            # that one has paused at another boundary than this one's, if it has any
            waited_for = any(
                not r.alive or r.stateless or (r.mode == PAUSED and r.step != k.pause.step)
                for r in self.world.ranks
                if r.number in job.ranks
            )
            assert self.world.jam or waited_for, "this collective would have ended"
        elif isinstance(command, to_agent.GiveUp):
            self._check_paragraph(command.reason)

    def _check_take_over(self, command: to_agent.TakeOver) -> None:
        world = self.world
        node = world.coordinator.job.topology.nodes[command.node]
        asked = "recover" in world.settings.ladder or (
            command.former and world.settings.sub_healthy == "move"
        )
        asked = asked or world.clusterd != "off"  # which may order it
        asked = asked or bool(command.nested and "elastic-training" in world.settings.ladder)
        assert asked and node.lost and command.agent not in world.fenced
        having = {n.agent for n in world.nodes if not n.gone and n.number != command.node}
        assert command.agent not in having, "the agent already has a node"
        job = world.coordinator.job
        if command.nested:  # half is enough: the others cannot have a manager of their own
            reachable, everybody = job.reachable()
            reachable += bool(command.former)
            assert 2 * reachable >= everybody, "a node grows without half of the agents"
        else:  # a node that moves is lost to the job, but its agent is reachable
            former = bool(command.former)
            reachable, everybody = job.topology.reachable()
            if world.elastic:  # a roster changes with the same event, and has the newest standbys
                reachable, everybody = job.reachable()
                reachable += len(world.coordinator.admission._standbys)
            # ClusterD may have more nodes replaced with the same event, after this order
            incident = world.coordinator.recovery.incident
            faults = incident.faults if incident is not None else []
            reachable += max(sum(f.endswith("ClusterD replaces its pod") for f in faults) - 1, 0)
            half = former and bool(job.away)
            assert 2 * (reachable + former) + half > everybody, "a takeover without a majority"
        if command.former:
            assert world.nodes[command.node].agent == command.former
            world.counts["moves"] += 1
        else:
            before = world.nodes[command.node].agent  # "": it has become a standby, or is told to
            known = not before or before in world.fenced or before in job.topology.stood_down
            assert known or world.manager, "its former agent is not fenced"
        for rank, incarnation in zip(command.ranks, command.incarnations, strict=True):
            # otherwise its earlier processes are unknown, and ignored; or it starts none, until all
            # ranks are restarted
            heard = world.nodes[command.node].joined == world.manager and not command.restart
            assert incarnation == self.newest[rank] + 1 or not heard, (
                "an incarnation is repeated or skipped"
            )
            self.newest[rank] = incarnation
        world.counts["taken over"] += 1

    def _allowed(self, incident: Incident | None) -> tuple[str, ...]:
        """The strategies that an incident may use: one that ends an interrupted move has more than
        are configured. The event that is handled may have ended it."""
        incident = incident or self._incident
        rungs = (incident.rungs if incident is not None else ()) or self.world.settings.ladder
        # what is configured counts under ClusterD's strategies too
        return (*rungs, *(self.world.settings.ladder if self.world.clusterd != "off" else ()))

    def _check_answer(self, command: to_operator.Answer) -> None:
        """Each request has one answer, and a successful pause has paused all ranks."""
        assert command.request in self._requests, (
            f"{command.request} is answered twice, or was never made"
        )
        self._requests.discard(command.request)
        self.world.counts[
            f"{command.request.split('-')[0]} {'done' if command.ok else 'not done'}"
        ] += 1
        if command.ok:
            self.done.add(command.request)
        if command.ok and command.request.startswith("pause"):
            fenced = self.world.fenced
            out = {n.number for n in self.world.nodes if n.cut or n.agent in fenced}
            out = out if self.world.elastic else set()
            living = [r for r in self.world.ranks if r.alive and r.node not in out]
            moving = [
                r for r in living if r.mode not in ("standing", "finished", "ended", "paused")
            ]
            assert not moving, f"reported paused, but not: {moving}"
            # a rank stopped for another reason has reported that, and the report is in flight
            assert all(r.spoiled or r.evidence for r in living if r.mode == "paused")
            assert len({r.step for r in living if r.mode in ("standing", "finished")}) <= 1, (
                "not at the same step"
            )

    def _check_paragraph(self, reason: str) -> None:
        # none of these is the end of an incident
        if reason.startswith(("The job ends: ClusterD orders it", "The job ends: nodes [")):
            return
        if reason.endswith("all ranks can no longer be started together"):
            return
        if "whose script has left the loop before that step and exited" in reason:
            assert any(r.left_loop for r in self.world.ranks), reason
            return
        incident = self.world.coordinator.recovery.incident
        if incident is not None and incident.leaving and incident.saved:
            assert "The state at the start of step " in reason and "--resume auto" in reason
            return
        job = self.world.coordinator.job
        if job.complete:
            assert (
                f"Training was complete: all ranks had committed step {job.released - 1}" in reason
            )
            there = [self.world.ranks[number] for number in job.ranks]
            steps = [r.step for r in there if r.alive and not r.stateless]
            assert all(step >= job.released for step in steps), steps
            return
        if self.world.elastic and incident is not None and not incident.rungs:
            assert "elastic-training: " in reason or incident.useless, reason
        parts = ("could not be repaired", "What was tried: ", "It began ", "s ago")
        for part in parts:
            assert part in reason, f"no {part!r} in {reason!r}"
        failed = reason.split(". Incident ")[0].removeprefix("The job ends: ")
        tried = reason.split("What was tried: ")[1]
        assert failed and tried
        assert " more" in failed or all(cause in failed for cause in self._tellings), (
            failed,
            self._tellings,
        )
        if incident is not None and incident.rounds:
            assert not tried.startswith("nothing"), (
                "a strategy was tried, but the paragraph denies it"
            )
        if "were still alive" in reason:
            # or the order to kill it came late
            slow = any(r.immortal or r.deaf for r in self.world.ranks)
            assert slow or self.world.fenced, "a rank that was about to die was not awaited"
