"""Ranks of a framework that copies its own state leave and come back: it is told so, and does the
rest. It goes on without ranks once, and nothing is repaired meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from taskd.messages import from_agent, from_rank, to_agent, to_rank
from taskd.messages.values import Position, ReplicaGroup, Spans
from tests.core import scenario
from tests.core.scenario_play import Play

LADDER = "ladder=retry,recover-in-place,elastic-training,dump,exit"


class Job(Play):
    """4 ranks on 2 nodes, model parallel within each: ranks 0 and 2 have the same, and 1 and 3."""

    def begin(self, count: int = 2) -> Job:
        scenario.take(self, f"form 4 ranks on 2 nodes [{LADDER}]")
        self.state.handlers = True
        for rank in range(4):
            group = ReplicaGroup((rank % 2, rank % 2 + 2), count)
            self.tell(from_rank.OptimizerReplicas(rank, 0, (group,), True))
        return self

    def tell(self, *events: Any) -> list[Any]:
        return [c for event in events for c in self.coordinator.step(event, self.now)]

    def take(self, *lines: str) -> str:
        return "\n".join(said for line in lines for said in scenario.take(self, line))

    @property
    def state(self) -> Any:
        return self.coordinator.job

    def stop(self, ranks: tuple[int, ...], updates: int = 9, **more: Any) -> list[Any]:
        number = self.state.interruption
        return self.tell(
            *(
                from_rank.RankInterrupted(
                    r,
                    self.state.ranks[r].incarnation,
                    number,
                    Position(
                        updates,
                        updates,
                        replica_set=r % 2,
                        members=Spans.of((r % 2, r % 2 + 2)),
                        **more,
                    ),
                )
                for r in ranks
            )
        )

    def all(self, kind: Any, *fields: Any) -> list[Any]:
        number = self.state.generation
        ranks = self.state.ranks.items()
        return self.tell(*(kind(r, s.incarnation, number, *fields) for r, s in ranks))

    def shrink(self) -> None:
        self.take("node 1 is lost: silence")
        self.stop((0, 1))
        self.all(from_rank.RankRebuilt)
        self.all(from_rank.RankRestored, "")
        self.all(from_rank.StepCommitted, 9)
        assert self.coordinator.recovery.incident is None and set(self.state.away) == {2, 3}

    def grow(self) -> str:
        """Until the ranks are paused and the standby is to take the node over."""
        out = self.take("standby S waits", "standby S is ready to be node 1")
        return out + self.take("node 0: no rank has begun 20", "ranks 0-1 paused before 20")


@pytest.fixture
def job() -> Job:
    return Job().begin()


def only(kind: type, commands: list[Any]) -> Any:
    (found,) = [c for c in commands if isinstance(c, kind)]
    return found


def test_ranks_leave_and_no_records_are_taken(job: Job) -> None:
    job.take("node 1 is lost: silence")
    out = job.stop((0, 1))
    assert not any(isinstance(c, to_agent.TakeRecords) for c in out)
    order = only(to_rank.Rebuild, out)
    assert dict(order.stand_ins).keys() == {2, 3} and not order.grows and not order.new
    plan = only(to_rank.Restore, job.all(from_rank.RankRebuilt)).plan
    assert plan.step == 9 and not plan.optimizers
    assert only(to_rank.Resume, job.all(from_rank.RankRestored, "")).step == 9


def test_they_come_back_all_together_with_new_processes_and_copies(job: Job) -> None:
    job.shrink()
    out = job.grow()
    assert "standby S prepares to be node 1" in out and "interruption 2" in out
    job.stop((0, 1), 20)
    job.take("standby S has taken node 1 @ nothing")
    order = only(to_rank.Rebuild, job.tell(*(from_rank.RankReady(r, 1) for r in (2, 3))))
    assert order.grows and order.new == (2, 3) and not order.stand_ins
    plan = only(to_rank.Restore, job.all(from_rank.RankRebuilt)).plan
    assert (plan.step, plan.optimizers) == (20, ((0, 2, 0), (0, 3, 1)))
    job.all(from_rank.RankRestored, "")
    job.all(from_rank.StepCommitted, 20)
    assert not job.state.away and job.coordinator.recovery.incident is None
    # from then on everything is repaired as ever
    assert "replace rank 3" in job.take("rank 3 died: killed")


def test_no_standby_fetches_records(job: Job) -> None:
    job.shrink()
    waits = from_agent.StandbyJoined("S", 2)
    order = only(to_agent.Prepare, job.tell(waits))
    assert order.own_state and not order.nested and not order.records


@pytest.mark.parametrize(
    "fault", ["rank 1 has a network fault in step 12: link", "rank 1 died: killed"]
)
def test_a_fault_meanwhile_is_not_repaired(job: Job, fault: str) -> None:
    job.shrink()
    job.take("with notes")
    out = job.take(fault)
    assert "strategy dump" in out, out
    for strategy in ("retry", "recover-in-place", "elastic-training"):
        assert f"{strategy}: the framework repairs nothing until" in out


def test_nor_is_one_before_all_have_resumed(job: Job) -> None:
    """The framework may have been told already that ranks have left."""
    job.take("node 1 is lost: silence")
    job.stop((0, 1))
    job.take("with notes")
    assert "strategy dump" in job.take("rank 1 failed: the handler has raised")


def test_a_newcomer_that_is_lost_while_it_joins_is_no_reason_to_try_again(job: Job) -> None:
    """What the handlers had done by then is not known."""
    job.shrink()
    job.grow()
    job.stop((0, 1), 20)
    job.take("with notes", "standby S has taken node 1 @ nothing")
    out = job.take("rank 2 died: killed")
    assert "strategy dump" in out and set(job.state.away) == {2, 3}


@pytest.mark.parametrize(
    ("count", "more", "why"),
    [
        (2, {"inelastic": "the framework has no handler"}, "the framework has no handler"),
        (1, {}, "a part of optimizer 0 is on ranks [2] alone, which would leave"),
    ],
)
def test_what_is_not_possible_falls_to_the_next_strategy(
    count: int, more: dict[str, Any], why: str
) -> None:
    job = Job().begin(count)
    job.take("with notes", "node 1 is lost: silence")
    out = "\n".join(map(str, job.stop((0, 1), **more)))
    assert f"elastic-training failed: {why}" in out and not job.state.away


def test_not_without_rank_0(job: Job) -> None:
    job.take("node 0 is lost: silence")
    out = "\n".join(map(str, job.stop((2, 3))))
    assert "rank 0, with which the framework writes" in out and not job.state.away


def test_not_where_a_rank_lacks_an_update(job: Job) -> None:
    job.take("node 1 is lost: silence")
    job.stop((0,), 10)
    out = "\n".join(map(str, job.stop((1,), 9)))
    assert "rank 1 has not the state after update 10" in out and not job.state.away


JOINS = "node 0 joins: joined=0-1 generation=2 resumed=2 handlers=1 stand_ins=2=0/3=1"


def replaced(job: Job, joins: str) -> str:
    """Another manager takes a job over that has shrunk."""
    job.shrink()
    return job.take("the manager is replaced by a new one", joins)


def test_another_manager_knows_the_groups_of_ranks_that_are_away(job: Job) -> None:
    replaced(job, JOINS)
    job.tell(
        *(from_rank.OptimizerReplicas(r, 0, (ReplicaGroup((r, r + 2), 2),), True) for r in range(2))
    )
    assert job.state.handlers and set(job.state.away) == {2, 3}
    job.grow()
    job.stop((0, 1), 20)
    job.take("standby S has taken node 1 @ nothing")
    job.tell(*(from_rank.RankReady(r, 1) for r in (2, 3)))
    plan = only(to_rank.Restore, job.all(from_rank.RankRebuilt)).plan
    assert plan.optimizers == ((0, 2, 0), (0, 3, 1))


def test_nor_does_another_manager_repair_anything(job: Job) -> None:
    """It knows whose job it is before it chooses."""
    job.take("with notes")
    assert "strategy dump" in replaced(job, f"{JOINS} waiting=0-1 interruption=2")
