"""Progress probes of the world: what ranks, or their agents for them, answer."""

from __future__ import annotations

from taskd.messages import from_agent
from tests.core.actors import (
    COMMITTED,
    ENDED,
    FINISHED,
    HELD,
    HUNG,
    LOOPING,
    PAUSED,
    TRAINING,
    UPDATED,
    Node,
    Part,
    Rank,
)


class Probes(Part):
    def answer(self, node: Node, call: int) -> None:
        """Answer a progress probe, if the agent itself is alive; it answers for silent ranks."""
        if self.likely(0.03):
            self.counts["progress probe unanswered"] += 1
            return
        for rank in node.ranks:
            if rank.mode != ENDED:
                answers = (
                    rank.alive
                    and rank.mode != HUNG
                    and (rank.slow <= self.world.now or self.chance.random() < 0.5)
                )
                self.after(
                    0.001 if answers else 0.25,
                    lambda r=rank, p=rank.process, a=answers: self.present(r, p, call, a),
                )

    def present(self, rank: Rank, process: object, call: int, answers: bool) -> None:
        if process is not rank.process:
            return
        inside = rank.stage != COMMITTED and rank.mode in (TRAINING, HUNG, LOOPING)
        self.say(
            self.world.nodes[rank.node],
            from_agent.ProgressReport(
                rank=rank.number,
                incarnation=rank.incarnation,
                call=call,
                answered=answers,
                step=rank.step,
                collectives=int(inside and (rank.entered or rank.stage == UPDATED))
                if answers
                else 0,
                waiting=rank.mode in (HELD, PAUSED, FINISHED),
                overdue=rank.overdue(self.world.now),
                seconds=self.world.now - rank.beat,
                cpu=rank.cpu
                + (
                    self.world.now
                    if rank.mode == LOOPING or (rank.slow > self.world.now and rank.steps == 0)
                    else 0.0
                ),
                where=rank.mode,
                patient=rank.slow > self.world.now and rank.steps > 0,
            ),
        )
