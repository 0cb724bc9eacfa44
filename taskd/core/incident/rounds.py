"""A round: which ranks it interrupts, evicts and replaces, and whether there may be another one.

Functions that choose what follows return a `Next`: the move to make and why, or None if the
incident has to wait. They update the incident and give orders; `driver.py` makes the moves.
"""

from __future__ import annotations

from collections.abc import Mapping

from taskd.core.abbreviate import abbreviate
from taskd.core.incident import ladder
from taskd.core.incident.ladder import Damage, Rung
from taskd.core.incident.phases import Move
from taskd.core.incident.state import Incident, Round
from taskd.core.incident.takeover import Takeover
from taskd.core.incident.times import RankTimes
from taskd.core.state import JobState
from taskd.messages import to_agent, to_rank
from taskd.messages.from_rank import OTHER

Next = tuple[Move, str] | None
NOBODY: frozenset[int] = frozenset()


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
        # `dump` replaces no rank
        lost = dead | set(incident.evicted) if incident.strategy != "dump" else NOBODY
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
        # put everything back first; a rank at fault will be detected again
        if incident.moving is not None:
            return Move.SPENT, incident.faults[-1]
        incident.evicted.update(ranks)
        if incident.strategy == "retry":  # it keeps every process
            return Move.SPENT, listed(ranks)
        return self.another(incident, move=move)

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
        living = sum(n.living for n in topology.nodes.values()) - len(self._nodes.broken(incident))
        return Damage(
            dead=frozenset(gone | incident.new),
            lost_nodes=frozenset(i for i, n in topology.nodes.items() if n.lost),
            protected=job.protected,
            ended=frozenset(r for r, s in job.ranks.items() if s.ended),
            evicted=dict(incident.evicted),
            living_nodes=living,
            moving=incident.moving is not None,
            unusable=unusable,
        )

    def begin(self, incident: Incident, rung: Rung, now: float) -> None:
        """Interrupt every rank, kill the evicted ones, replace those without a process."""
        job = self._job
        if rung.strategy != incident.strategy:
            passed = f" (passed over: {'; '.join(rung.skipped)})" if rung.skipped else ""
            job.note(f"strategy {rung.strategy}: {rung.reason}{passed}", told=True)
            job.tell(
                "decision",
                incident=incident.number,
                strategy=rung.strategy,
                reason=rung.reason,
                passed_over=list(rung.skipped),
            )
            incident.strategy, incident.first = rung.strategy, incident.rounds
        incident.rounds += 1
        times = RankTimes(incident.rounds, incident.strategy, len(job.ranks), now)
        incident.round = Round(times=times)
        incident.times.append(times)
        job.interruption += 1
        if rung.strategy == "recover":
            for node in self._nodes.broken(incident):
                self._nodes.give_up(node, incident.faults[-1])
                incident.forget(job.topology.nodes[node].ranks)
        faulty = self.faulty(incident) if job.handlers else ()
        job.say(to_rank.Interrupt(job.interruption, incident.faults[-1], rung.strategy, faulty))
        if rung.strategy == ladder.HOT_SWITCH:
            self._nodes.move(incident)
        if rung.strategy == "dump":
            incident.forget(tuple(r for r, s in job.ranks.items() if not s.alive))
            incident.killed.clear()
        else:
            self.replace(incident)
            self._nodes.assign(incident)
            self._kill(incident, now)
        incident.deadline = max(
            [incident.deadline, *(then + job.settings.kill for then in incident.killed.values())]
        )

    def ask_again(self, incident: Incident, silent: list[int]) -> None:
        """Interrupt every rank once more: `silent` have not stopped in time."""
        incident.round.asked_again = True
        running = abbreviate(r for r in silent if r not in incident.killed)
        self._job.note(f"ranks [{running}] have not stopped; asked again")
        self._job.say(to_rank.Interrupt(self._job.interruption, "asked again", incident.strategy))

    def faulty(self, incident: Incident) -> tuple[tuple[int, int], ...]:
        """The ranks at fault and their faults' types. A process that is gone or goes is `other`."""
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

    def _kill(self, incident: Incident, now: float) -> None:
        for number, why in sorted(incident.evicted.items()):
            if number not in incident.killed:
                incident.killed[number] = now
                incarnation = self._job.ranks[number].incarnation
                self._job.say(to_agent.Kill(number, incarnation, why, number in incident.hung))


def listed(why: Mapping[int, str]) -> str:
    return abbreviate((f"rank {r}: {text}" for r, text in sorted(why.items())), "; ")
