"""Takes over a running job as its new manager, after its agents have registered.

Each agent reports all its state when it joins. Once all have joined, or the deadline has passed,
the job continues where it was: with an incident, if the previous manager was in one or ranks or
nodes were lost in between.
"""

from __future__ import annotations

from collections.abc import Sequence

from taskd.core import commands as c
from taskd.core import events as e
from taskd.core.abbreviate import abbreviate
from taskd.core.incident.machine import Recovery
from taskd.core.job.pause import Pause
from taskd.core.job.state import JobState, Part
from taskd.core.lifecycle.forming import Forming
from taskd.core.nodes.claims import Claims
from taskd.messages import from_agent
from taskd.messages.values import KEEPERS

UNDER_WAY = "an incident was under way when the manager was lost"
SILENT = "it has been silent since the previous manager was lost"


class Succession(Part):
    def __init__(
        self, job: JobState, recovery: Recovery, pause: Pause, forming: Forming, claims: Claims
    ) -> None:
        self._job, self._recovery, self._pause, self._forming = job, recovery, pause, forming
        self._claims = claims
        self._deadline: float | None = None  # for the last agent
        # node -> its keepers, each with the generation in which it got the records, and the newest
        # step, as reported by agents
        self._keeps: dict[int, dict[int, tuple[int, int]]] = {}
        # replacements ordered by an earlier manager that have no state yet
        self._new: set[int] = set()
        self._ready: set[int] = set()
        self._waiting: set[int] = set()  # ranks that wait for orders
        # the newest generation that ranks have resumed in, and who stood in for whom then
        self._resumed, self._stand_ins = 0, dict[int, int]()
        self._ended: dict[str, str] = {}  # agents that ended before they could register, and how

    @property
    def deadline(self) -> float | None:
        return self._deadline

    def learn(self, event: from_agent.AgentJoined) -> None:
        """Learn from an agent about its ranks' processes, which are new to this manager."""
        ranks, dead = set(event.ranks), set(event.dead)
        for known, told in (
            (self._new, event.new),
            (self._ready, event.ready),
            (self._waiting, event.waiting),
        ):
            known -= ranks  # in place: all ranks may wait
            known |= set(told) - dead  # one that is away had perhaps been replaced before
        if event.generation and event.handlers:  # not each agent has a process that has reported so
            self._job.handlers = True
        if event.resumed > self._resumed:
            self._resumed, self._stand_ins = event.resumed, dict(event.stand_ins)
        if self._stand_ins or self._job.away:
            # A process of one of them is old, of a node that was cut off; or it was coming back,
            # and no rank has resumed with it: then perhaps not all of its lane are there.
            self._learn_away(dict(self._stand_ins))

    def _learn_away(self, stand_ins: dict[int, int]) -> None:
        """Learn which ranks are away. A node whose ranks all are may never register."""
        job, topology = self._job, self._job.topology
        job.come_back([rank for rank in job.away if rank not in stand_ins])
        job.go_away([rank for rank in stand_ins if rank not in job.away])
        job.stand_ins = stand_ins
        job.held = {rank: (rank, stand_in) for rank, stand_in in stand_ins.items()}
        each = job.settings.ranks_per_node
        for number in {rank // each for rank in stand_ins} - topology.nodes.keys():
            ranks = tuple(range(number * each, number * each + each))
            if set(ranks) <= stand_ins.keys():
                topology.join(number, ranks, ("", 0), 0)
                topology.nodes[number].lost = True

    def keeps(self, event: from_agent.AgentJoined) -> None:
        """Learn where the records of other nodes are. A former keeper may still have old ones."""
        for node, generation, step in event.keeps:
            self._keeps.setdefault(node, {})[event.node] = generation, step

    def gather(self, now: float) -> None:
        """An agent of a running job has joined: set the deadline for the others."""
        if not self._job.protected and self.deadline is None:
            self._deadline = now + self._limit

    @property
    def _limit(self) -> float:
        """Seconds for the agents to register."""
        settings = self._job.settings
        return settings.form if self._patient else settings.gather

    @property
    def _patient(self) -> bool:
        return not self._job.settings.survives_nodes  # a missing node could not be replaced

    def ended(self, event: e.AgentEnded, now: float) -> list[e.Event]:
        """Wait no longer for an agent that has ended. Returns the registrations that waited for
        it."""
        self._job.election.ended(event.agent)
        self._ended[event.agent] = event.why
        return [*self._claims.stands(event.agent)]

    def follow_up(self, now: float) -> None:
        """Find out which agents have ended; once no other may come, do not wait until the
        deadline."""
        if self._deadline is None or self._patient:
            return
        if agents := self._job.election.unasked():
            self._job.say(c.AskMachines(agents))
        if self._job.election.all_accounted and self._replaceable():
            self._deadline = min(self._deadline, now)

    def stop(self) -> None:
        self._deadline = None

    def drop(self, why: str) -> None:
        self.stop()
        self._resumed, self._stand_ins = 0, {}
        self._job.come_back(tuple(self._job.away))

    def waits(self, rank: int) -> None:
        """Note that the rank waits for orders before all agents have joined."""
        self._waiting.add(rank)

    def take_over(self, now: float) -> None:
        """Take over the job: all agents have joined."""
        job = self._job
        if not self._forming.all_joined:
            return
        self._protect()
        self._recovery.nodes.keep_records()
        dead = sorted(r for r, rank in job.ranks.items() if not rank.alive)
        if dead or self._waiting or self._new:
            how = "; ".join(f"rank {r}: died while there was no manager" for r in dead)
            self._join(how or UNDER_WAY, now)
            self._recovery.again(now, frozenset(dead))
        else:
            job.note(f"took over a job of {len(job.ranks)} ranks at generation {job.generation}")

    def _protect(self) -> None:
        self._job.protected, self._deadline = True, None
        self._job.journal("protected", generation=self._job.generation)
        self._pause.complete()

    def _join(self, text: str, now: float) -> None:
        """Join an incident that knows an earlier manager's replacements as its own."""
        incident = self._recovery.join(text, now=now)
        ranks = self._job.ranks
        incident.new |= self._new & ranks.keys()
        incident.ready |= self._ready & ranks.keys()
        if self._claims.interrupted:
            incident.rungs = self._claims.rungs(bool(self._new))

    def tick(self, now: float) -> Sequence[e.Event] | None:
        """Continue without the nodes that have not registered, or restart all ranks."""
        if self.deadline is None or now < self.deadline:
            return None
        if held := self._claims.overdue():
            return held  # else their nodes would count as lost
        if not self._without_missing_nodes(now):
            job, when = self._job, f"within {self._limit:.0f} s"
            missing = [n for n in range(job.settings.nodes) if n not in job.topology.nodes]
            if missing:  # in a restart of all ranks, launchers would wait for these nodes too
                nodes = abbreviate(missing)
                job.exhausted = f"nodes [{nodes}] have not registered with the new manager {when}"
            else:
                ranks = abbreviate(r for r, rank in job.ranks.items() if not rank.joined)
                job.restart_all(f"a new manager has heard nothing from ranks [{ranks}] {when}")
            self.stop()
        return []

    def _without_missing_nodes(self, now: float) -> bool:
        """Continue without the nodes that did not register, if standbys can replace them: they were
        lost with the previous manager."""
        job, nodes = self._job, self._job.topology.nodes
        each = job.settings.ranks_per_node
        if not (missing := self._replaceable()):
            return False
        epoch = max(n.epoch for n in nodes.values())
        for number in missing:
            ranks = tuple(range(number * each, number * each + each))
            if job.topology.join(number, ranks, ("", 0), epoch) is not None:
                return False
            kept = self._keeps.get(number, {})
            best = sorted(sorted(kept), key=lambda keeper: kept[keeper], reverse=True)
            nodes[number].keepers = tuple(best[:KEEPERS])
            for rank in job.ranks.keys() & set(ranks):
                job.ranks[rank].joined = True
        self._protect()
        if self._new:
            self._join(f"nodes [{abbreviate(missing)}] did not register", now)
        holders = [job.election.holder(number) for number in missing]
        for number, holder in zip(missing, holders, strict=True):
            how = self._ended.get(holder)
            why = f"it was lost with the previous manager: {how}" if how else SILENT
            self._recovery.lost(number, why, now)
        return True

    def _replaceable(self) -> list[int]:
        """Return the nodes without an agent, if standbys can replace them."""
        job, nodes = self._job, self._job.topology.nodes
        there = (job.ranks[r] for n in nodes.values() for r in n.ranks if r in job.ranks)
        if self._patient or not all(rank.joined for rank in there):
            return []
        return [n for n in range(job.settings.nodes) if n not in nodes]
