"""Rounds: whether there may be another one, under which strategy, and which processes it replaces;
and the base class of the phases' work.

Functions that choose what follows return a `Next`: the move to make and why, or None if the
incident has to wait. They update the incident and give orders; `machine.py` makes the moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.incident.phases import Move
from taskd.core.incident.state import Incident
from taskd.core.incident.takeover import Takeover
from taskd.core.job import ladder
from taskd.core.job.ladder import Damage, Rung
from taskd.core.job.state import JobState
from taskd.messages import to_agent
from taskd.messages.from_rank import OTHER

Next = tuple[Move, str] | None
NOBODY: frozenset[int] = frozenset()


class Work:
    """The work of a phase. `finished` is called after every event that may have been the last one
    the phase waits for."""

    @property
    def limit(self) -> float:
        """The seconds that the phase may take."""
        return 0.0

    def enter(self, incident: Incident, why: str, now: float) -> Next:
        """Begin. `why`: the reason of the move that led here, where it is not obvious."""
        return None

    def finished(self, incident: Incident) -> Next:
        """The next move, once there is nothing left to wait for."""
        return None

    def due(self, incident: Incident) -> float:
        return incident.deadline

    def silent(self, incident: Incident) -> list[int]:
        """The ranks that it waits for."""
        return []

    def late(self, incident: Incident) -> Next:
        """The time is up: the move that follows, or None if what it waits for can be replaced."""
        return None


def with_handlers(job: JobState, seconds: float) -> float:
    """A limit of a phase in which a framework's handler may be called, more than once."""
    return max(seconds, 2 * job.settings.handler if job.handlers else 0.0)


class Rounds:
    def __init__(self, job: JobState, nodes: Takeover) -> None:
        self._job, self._nodes = job, nodes

    # -- whether there is another one --------------------------------------------------------------

    def another(
        self, incident: Incident, dead: frozenset[int] = NOBODY, move: Move = Move.FAULT
    ) -> Next:
        """Return `move`, which starts another round, or SPENT if the strategy has used up its
        rounds or replacements. `dead`: ranks without a process."""
        settings = self._job.settings
        if incident.moving is not None and incident.rounds:
            return Move.SPENT, incident.faults[-1]
        replaces = incident.strategy not in ladder.KEEPING
        lost = dead | set(incident.evicted) if replaces else NOBODY
        spent = [r for r in sorted(lost) if incident.replaced[r] >= settings.replacements]
        if spent:
            rank = spent[0]
            again = "died again" if rank in dead else f"cannot be kept: {incident.evicted[rank]}"
            times = incident.replaced[rank]
            return Move.SPENT, f"rank {rank} was replaced {times} times and {again}"
        rounds = incident.rounds - incident.first
        # two more for each replaced rank: faults are reported one by one
        ranks = {*incident.replaced, *incident.evicted, *self.waiting()}
        if rounds >= settings.rounds + 2 * len(ranks):
            return Move.SPENT, f"{rounds} rounds without a committed step"
        return move, ""

    def evict(self, incident: Incident, ranks: Mapping[int, str], move: Move = Move.FAULT) -> Next:
        """Return the move to a round that replaces the processes of `ranks`; the values are why
        they cannot be kept."""
        # undo the move first; a rank at fault will be detected again
        if incident.moving is not None:
            return Move.SPENT, incident.faults[-1]
        incident.evicted.update(ranks)
        self.count(incident, ranks)
        if incident.strategy == "retry":  # it keeps every process
            return Move.SPENT, listed(ranks)
        return self.another(incident, move=move)

    def count(self, incident: Incident, ranks: Iterable[int]) -> None:
        """Count the incident as a fault in the containers of the ranks at fault, once in each. If
        one of them has had as many as it may, nothing is repaired any more."""
        job, topology = self._job, self._job.topology
        for number in sorted({n for r in ranks if (n := topology.node_of(r)) is not None}):
            node = topology.nodes[number]
            had, allowed = node.faults
            if number in incident.counted or allowed is None or not node.living:
                continue
            incident.counted.add(number)
            if had < allowed:
                job.count_fault(number, 1)
            elif not incident.leaving:
                text = (
                    f"this is fault {had + 1} in the container of node {number}, more than its"
                    f" --max_restarts {allowed} allows"
                )
                job.note(incident.add(text, explains=False), journaled=True)
                incident.tell_fault(job, text)
                incident.consults = False
                incident.narrow(job.last_rungs)

    # -- what it begins with -----------------------------------------------------------------------

    def choose(self, incident: Incident) -> Rung:
        """Choose the strategy of the next round."""
        return ladder.choose(
            incident.rungs or self._job.settings.ladder,
            self.damage(incident),
            incident.failed,
            incident.strategy,
        )

    def damage(self, incident: Incident) -> Damage:
        job, topology = self._job, self._job.topology
        gone = {r for r, s in job.ranks.items() if not s.alive}
        unusable = {
            r: why
            for r in (gone - topology.absent()) | set(incident.evicted)
            if (why := job.ranks[r].unusable)
        }
        living = sum(n.living for n in topology.nodes.values())
        living -= len(self._nodes.broken(incident)[0])
        return Damage(
            dead=frozenset(gone | incident.new),
            lost_nodes=frozenset(topology.lost),
            protected=job.protected,
            ended=frozenset(r for r, s in job.ranks.items() if s.ended),
            evicted=dict(incident.evicted),
            living_nodes=living,
            moving=incident.moving is not None,
            unusable=unusable,
            shrunk=job.handlers and bool(job.away),
        )

    def faulty(self, incident: Incident) -> tuple[tuple[int, int], ...]:
        """The faulty ranks and their faults' types. A process that is gone, or about to be killed,
        counts as `other`."""
        gone = {r for r, s in self._job.ranks.items() if not s.alive}
        gone |= incident.new | set(incident.evicted)
        return tuple(sorted({**incident.kinds, **dict.fromkeys(gone, OTHER)}.items()))

    def replace(self, incident: Incident) -> None:
        """Start the processes that are missing, except on devices that are being reset."""
        absent = self._job.topology.absent()
        for number, rank in self._job.ranks.items():
            if rank.alive or number in absent:
                continue
            if rank.resetting:
                incident.ended(number)
            else:
                incarnation = rank.incarnation + 1
                self._job.say(to_agent.Replace(number, incarnation, incident.renew(number, rank)))

    def waiting(self) -> dict[int, str]:
        """The ranks whose process is missing until their device has been reset, and why that is."""
        absent = self._job.topology.absent()
        return {
            number: rank.resetting
            for number, rank in self._job.ranks.items()
            if rank.resetting and not rank.alive and number not in absent
        }


def listed(why: Mapping[int, str]) -> str:
    return abbreviate((f"rank {r}: {text}" for r, text in sorted(why.items())), "; ")
