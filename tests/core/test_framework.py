"""A framework that repairs itself: its program ends the job; and no rank's state is right, so that
all load a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from taskd.messages import from_agent, from_rank, to_agent, to_rank
from taskd.messages.values import Load, Position, ReplicaGroup
from tests.core import scenario
from tests.core.scenario_play import Play

RANKS = range(4)
TEXT = "PRECISION ERROR: loss is nan, load ckpt step=5"
ASKED = Load(5, TEXT)


class Job(Play):
    """4 ranks on 2 nodes whose frameworks copy each other's optimizers, after 9 updates."""

    def begin(self, options: str = "ladder=retry,recover-in-place,dump,exit", loads: bool = True):
        scenario.take(self, f"form 4 ranks on 2 nodes [{options}]")
        self.state.handlers = True
        for rank in RANKS:
            group = ReplicaGroup((rank % 2, rank % 2 + 2), 2)
            self.tell(from_rank.OptimizerReplicas(rank, 0, (group,), loads))
        return self

    def tell(self, *events: Any) -> list[Any]:
        return [c for event in events for c in self.coordinator.step(event, self.now)]

    @property
    def state(self):
        return self.coordinator.job

    @property
    def incarnations(self):
        return {r: s.incarnation for r, s in self.state.ranks.items()}

    def asks(self, rank: int = 1, load: Load = ASKED) -> list[Any]:
        fault = from_rank.RankFaulted(rank, 0, 9, from_rank.MEMORY, load.text, 0, load)
        return self.tell(fault)

    def stop(self, ranks=RANKS, load: Load | None = None, updates: int = 9) -> list[Any]:
        at = Position(updates, updates, load=load)
        number = self.state.interruption
        return self.tell(
            *(from_rank.RankInterrupted(r, self.incarnations[r], number, at) for r in ranks)
        )

    def rebuild(self) -> list[Any]:
        number = self.state.generation
        return self.tell(
            *(from_rank.RankRebuilt(r, i, number) for r, i in self.incarnations.items())
        )

    def restore(self, *loaded: int) -> list[Any]:
        number = self.state.generation
        return self.tell(
            *(
                from_rank.RankRestored(r, i, number, f"step {step}", step)
                for (r, i), step in zip(self.incarnations.items(), loaded, strict=True)
            )
        )


@pytest.fixture
def job() -> Job:
    return Job().begin()


def only(kind: type, commands: list[Any]) -> Any:
    (found,) = [c for c in commands if isinstance(c, kind)]
    return found


def text(commands: list[Any]) -> str:
    return "\n".join(map(str, commands))


# -- its program -----------------------------------------------------------------------------------


def test_a_program_of_the_framework_ends_the_job_and_is_named_as_such(job):
    out = text(job.tell(from_rank.StrategyRequested(1, 0, "exit")))
    assert job.state.over and "rank 1: its program requests exit" in out


def test_it_can_choose_nothing_else(job):
    out = text(job.tell(from_rank.StrategyRequested(1, 0, "retry")))
    assert not job.state.over and "ignored; dump and exit may be requested" in out


# -- a checkpoint is loaded ------------------------------------------------------------------------


def test_all_ranks_load_the_checkpoint_that_is_asked_for_and_go_on_from_it(job):
    assert "rank 1 asks in step 9 that all ranks load the checkpoint of step 5" in text(job.asks())
    job.asks(3)
    out = job.stop()
    assert not any(isinstance(c, to_agent.Replace) for c in out)
    plan = only(to_rank.Restore, job.rebuild()).plan
    assert plan.load == ASKED and not plan.optimizers
    assert only(to_rank.Resume, job.restore(5, 5, 5, 5)).step == 5


def test_where_no_step_is_named_whichever_all_have_loaded(job):
    job.asks(load=Load(-1, "HBM MULTI BIT ECC"))
    job.stop()
    assert only(to_rank.Restore, job.rebuild()).plan.load.step == -1
    assert only(to_rank.Resume, job.restore(7, 7, 7, 7)).step == 7


def test_another_checkpoint_than_the_one_asked_for_is_refused(job):
    job.asks()
    job.stop()
    job.rebuild()
    out = text(job.restore(8, 8, 8, 8))
    assert "the framework loaded the checkpoint of step 8 instead" in out
    assert "Resume" not in out


def test_ranks_that_have_loaded_different_ones_load_again(job):
    job.asks(load=Load())
    job.stop()
    job.rebuild()
    out = job.restore(8, 8, 8, 6)
    assert "replicas differ" in text(out) and only(to_rank.Interrupt, out)
    job.stop()
    assert only(to_rank.Restore, job.rebuild()).plan.load is not None
    assert only(to_rank.Resume, job.restore(8, 8, 8, 8)).step == 8


def fail_to_load(job: Job) -> str:
    """Until the job is over: every order to load fails on rank 2."""
    out: list[Any] = []
    for _ in range(10):
        out += job.stop() + job.rebuild()
        out += job.tell(from_rank.RankFailed(2, 0, job.state.generation, "no such file"))
        if job.state.over:
            break
    return text(out)


@pytest.mark.parametrize("options", ["", " retries=2", " pods=1"])
def test_a_checkpoint_that_cannot_be_loaded_ends_the_job_which_says_what_to_start_from(options):
    """A wrong state is not saved; and a restart of all ranks would begin from a later one."""
    job = Job().begin(f"ladder=retry,recover-in-place,dump,exit{options}")
    job.asks()
    out = fail_to_load(job)
    assert job.state.over and out.count("Restore(") == 4
    assert "retry: rank 2 could not load the checkpoint of step 5: no such file" in out
    assert "dump: no rank has a right state" in out
    remedy = "from the checkpoint of step 5 (Megatron: with 5 in latest_checkpointed_iteration.txt)"
    assert f"Start the job again {remedy}." in out


def test_a_rank_that_dies_meanwhile_loads_with_the_others(job):
    job.asks()
    job.stop()
    job.tell(from_agent.RankDied(2, 0, "killed by SIGKILL", None))
    job.stop([0, 1, 3])
    job.tell(from_rank.RankReady(2, 1))
    plan = only(to_rank.Restore, job.rebuild()).plan
    assert plan.load == ASKED and not plan.keep
    assert only(to_rank.Resume, job.restore(5, 5, 5, 5)).step == 5


def begin_again(job: Job) -> None:
    """Node 0 is known to a new manager."""
    scenario.take(job, "the manager is replaced by a new one")
    scenario.take(job, "node 0 joins: joined=0-1 generation=1 handlers=1")


def complete(job: Job) -> None:
    scenario.take(job, "node 1 joins: joined=2-3 generation=1 handlers=1")
    job.tell(from_rank.OptimizerReplicas(0, 0, (ReplicaGroup((0, 2), 2),), True))


def test_every_rank_is_told_and_any_of_them_tells_the_next_manager(job):
    assert only(to_rank.Interrupt, job.asks()).load == ASKED
    begin_again(job)
    job.tell(from_rank.CollectiveFailed(0, 0, 9, "reset"))
    complete(job)
    job.stop([0, 1, 2])
    job.stop([3], ASKED)
    assert only(to_rank.Restore, job.rebuild()).plan.load == ASKED


def test_a_manager_that_does_not_know_all_ranks_yet_remembers_it(job):
    begin_again(job)
    job.asks()
    job.tell(from_agent.RankDied(1, 0, "killed by SIGKILL", None))
    complete(job)
    job.stop([0, 2, 3])
    job.tell(from_rank.RankReady(1, 1))
    assert only(to_rank.Restore, job.rebuild()).plan.load == ASKED


def test_before_the_first_update_too(job):
    """All ranks would otherwise be restarted, and begin from the newest."""
    job.asks()
    job.stop(updates=0)
    assert only(to_rank.Restore, job.rebuild()).plan.load == ASKED


def test_a_framework_that_cannot_load_ends_the_job():
    job = Job().begin(loads=False)
    job.asks()
    out = fail_to_load(job)
    assert job.state.over and "Restore(" not in out
    assert "all ranks have to load the checkpoint of step 5, which this framework cannot" in out


def test_without_a_replica_all_load_the_last_checkpoint(job):
    job.tell(from_agent.RankDied(0, 0, "killed by SIGKILL", None))
    job.tell(from_agent.RankDied(2, 0, "killed by SIGKILL", None))
    job.stop([1, 3])
    out = job.tell(from_rank.RankReady(0, 1), from_rank.RankReady(2, 1))
    plan = only(to_rank.Restore, job.rebuild()).plan
    assert "no replica has the state of optimizer 0 of rank 0" in plan.reason, text(out)
    assert plan.load == Load()
    assert only(to_rank.Resume, job.restore(7, 7, 7, 7)).step == 7


@pytest.mark.parametrize(
    ("asked", "counts"), [((-1, 5), 5), ((5, -1), 5), ((5, 3), 3), ((3, 5), 3), ((-1, -1), -1)]
)
def test_of_several_the_earliest_counts(asked, counts):
    job = Job().begin()
    for step in asked:
        job.state.ask(Load(step))
    job.state.ask(None)
    assert job.state.load is not None and job.state.load.step == counts


def test_once_all_train_on_from_it_the_next_fault_is_another_matter(job):
    job.asks()
    job.stop()
    job.rebuild()
    job.restore(5, 5, 5, 5)
    job.tell(*(from_rank.StepCommitted(r, 0, job.state.generation, 5) for r in RANKS))
    assert job.coordinator.recovery.incident is None
    job.tell(from_rank.RankFaulted(1, 0, 7, from_rank.MEMORY, "a page"))
    job.stop(updates=7)
    assert only(to_rank.Restore, job.rebuild()).plan.load is None


def test_a_load_that_was_begun_is_done_whatever_ranks_say_of_their_memory(job):
    """It may be the checkpoint's by then, or partly."""
    at = Position(9, None)
    job.tell(from_rank.RankFaulted(0, 0, 9, from_rank.MEMORY, "a page"))
    number = job.state.interruption
    job.tell(*(from_rank.RankInterrupted(r, 0, number, at) for r in (0, 2)))
    job.stop([1, 3])
    assert only(to_rank.Restore, job.rebuild()).plan.load == Load()
    out = job.tell(from_rank.RankFailed(3, 0, job.state.generation, "a peer is gone"))
    assert only(to_rank.Interrupt, out).load == Load()
    job.stop()
    assert only(to_rank.Restore, job.rebuild()).plan.load == Load()


def test_groups_that_could_not_be_made_are_no_failure_to_load(job):
    job.asks()
    for _ in range(2):
        job.stop()
        out = text(job.tell(from_rank.RankFailed(2, 0, job.state.generation, "timed out")))
    assert "could not load" not in out


def test_a_replacement_that_asks_while_all_restore_their_state_is_heard(job):
    job.tell(from_agent.RankDied(2, 0, "killed by SIGKILL", None))
    job.stop([0, 1, 3])
    job.tell(from_rank.RankReady(2, 1))
    assert only(to_rank.Restore, job.rebuild()).plan.load is None
    asks = from_rank.RankFaulted(2, 1, 9, from_rank.MEMORY, TEXT, 0, ASKED)
    assert only(to_rank.Interrupt, job.tell(asks)).load == ASKED


def test_ladders_without_retry_keep_the_processes_too():
    job = Job().begin("ladder=recover-in-place,exit")
    assert not any(isinstance(c, to_agent.Kill) for c in job.asks())
    job.stop()
    assert only(to_rank.Restore, job.rebuild()).plan.load == ASKED


def test_a_fault_of_an_unknown_type_asks_all_the_same(job):
    job.tell(from_rank.RankFaulted(1, 0, 9, 7, TEXT, 0, ASKED))
    assert job.state.load == ASKED


@pytest.mark.parametrize(("load", "ends"), [(ASKED, True), (Load(-1, "HBM MULTI BIT ECC"), False)])
def test_before_all_ranks_are_protected_only_the_newest_can_be_begun_from(load, ends):
    job = Job()
    scenario.take(job, "job 4 ranks on 1 node")
    scenario.take(job, "node 0 joins: ranks=0-3")
    job.tell(from_rank.RankJoined(1, handlers=True))
    out = text(job.asks(load=load))
    assert job.state.over is ends and ("RestartAll(" in out) is not ends
    assert ("Start the job again from the checkpoint of step 5" in out) is ends


def test_nobody_goes_back_behind_what_all_have_ended(job):
    job.state.released = 9
    job.asks()
    job.stop()
    job.rebuild()
    out = text(job.restore(5, 5, 5, 5))
    assert "ended before step 9, and the checkpoint is of step 5" in out and "Resume(" not in out
