"""Checks the plan of a repair against what the ranks of a `World` hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taskd.messages import to_rank

if TYPE_CHECKING:
    from tests.core.world import World


class Plans:
    def __init__(self, world: World) -> None:
        self.world = world

    def check(self, command: to_rank.Restore, floor: int, newest: dict[int, int]) -> None:
        """`floor`: no incident resumes before this step; `newest`: incarnations."""
        plan = command.plan
        ranks = self.world.ranks
        assert sorted([*plan.keep, *plan.stripes, *(d for d, _ in plan.copies)]) == [
            r.number for r in ranks if r.number in self.world.coordinator.job.ranks
        ]
        assert plan.step >= floor, f"step {plan.step} is repeated, but all ranks had passed {floor}"
        k = self.world.coordinator
        incident = k.recovery.incident
        assert incident is not None
        ends = [
            r.left if n in incident.new else incident.round.reports[n]
            for n, r in k.job.ranks.items()
        ]
        known = [p for p in (*ends, *incident.round.taken.values()) if p]
        assert plan.step <= min(max(p.known) for p in known)
        if final := [max(p.final) for p in known if p.final]:
            # of lost nodes only the provisional records are known
            oldest = [max(p.provisional) for p in known if not p.final]
            # paused ranks write only the record, not the stripes
            known_nowhere = not self._is_somewhere(min(final))
            # a provisional record counts only if a living rank has begun the step that it is of
            living = [p for n, p in incident.round.reports.items() if n not in incident.new]
            unsure = bool(oldest) and not any(min(final) in p.final for p in living)
            assert (
                min(final) <= plan.step
                or any(n <= plan.step + 1 for n in oldest)
                or known_nowhere
                or unsure
            )
        for destination, source in plan.copies:
            assert ranks[destination].replica_set == ranks[source].replica_set
        for number in plan.keep:
            rank = ranks[number]
            if rank.alive and rank.incarnation == newest[number]:
                assert rank.spoiled or (rank.position().clean == plan.step and not rank.stateless)

    def _is_somewhere(self, step: int) -> bool:
        """Whether, for each replica set, a living rank's memory or a node's stripes hold the state
        at the start of `step`."""
        return all(self._is_held(step, of) for of in range(self.world.sets))

    def _is_held(self, step: int, of: int) -> bool:
        k = self.world.coordinator
        incident = k.recovery.incident
        assert incident is not None
        ends = {
            n: r.left if n in incident.new else incident.round.reports[n]
            for n, r in k.job.ranks.items()
            if self.world.ranks[n].replica_set == of
        }
        if any(p.clean == step for n, p in ends.items() if p and n not in incident.new):
            return True
        # those that leave in this incident have written a part of what their node has
        leave = {
            n: r.left
            for n, r in k.job.away.items()
            if self.world.ranks[n].replica_set == of and n not in k.job.stand_ins
        }
        parts = {**ends, **leave}
        return any(
            any(r in ends for r in node.ranks)
            and all((p := parts[r]) and step in p.stripes for r in node.ranks if r in parts)
            for node in k.job.topology.nodes.values()
        )
