"""What a script does that cannot be right where ranks are away is refused by name, and in a full
job said beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as by_autograd
from torch.utils.data import DataLoader, DistributedSampler

from taskd.messages import from_rank
from taskd.worker.state.given import WouldDiverge
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab, with_seed
from tests.worker.elastic_scripts import Script, loader, others_hooks
from tests.worker.test_shares import samples

ELASTIC = "elastic-training,dump"


@pytest.fixture
def page(tmp_path):
    with elastic_lab.alone(tmp_path) as page:
        yield page


def started(tmp_path: Path, page: Any, script: Script, shrunk: bool = True) -> Lab:
    lab = Lab(tmp_path, page, 0, 3, **script.objects)
    if shrunk:
        lab.shrink_at_the_start({1: with_seed(51), 2: with_seed(52)})
    return lab


def refused(lab: Lab, says: str, run: Callable[[], None]) -> None:
    with pytest.raises(WouldDiverge, match=says):
        run()
    told = lab.line.last(from_rank.RankRaised)
    assert told.refused and told.text.startswith("elastic-training: ")


# -- loops over job.batches ------------------------------------------------------------------------


def reduces(script: Script, step: int, x: torch.Tensor) -> None:
    loss = script.loss(x)
    loss.backward()
    dist.all_reduce(loss.detach())
    script.update(step)


def reduces_by_autograd(script: Script, step: int, x: torch.Tensor) -> None:
    by_autograd.all_reduce(script.loss(x)).backward()
    script.update(step)


def reduces_by_function(script: Script, step: int, x: torch.Tensor) -> None:
    functional.all_reduce(torch.ones(1), "sum", dist.group.WORLD)
    script.share(step, x)
    script.update(step)


def waits(script: Script, step: int, x: torch.Tensor) -> None:
    script.share(step, x)
    dist.barrier()
    script.update(step)


def trains_twice(script: Script, step: int, x: torch.Tensor) -> None:
    for part in (x[:3], x[3:]):
        script.clear(step)
        script.share(step, part)
        script.update(step)


def follows(script: Script, step: int, x: torch.Tensor) -> None:
    """As a momentum encoder does in its forward."""
    with torch.no_grad():
        script.model.module.norm.bias.mul_(0.9)
    evaluates(script, step, x)


def evaluates(script: Script, step: int, x: torch.Tensor) -> None:
    script.share(step, x)
    script.update(step)
    with torch.no_grad():
        script.model(x)
    script.clear(step)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (reduces, "the script calls allreduce of torch.distributed itself"),
        (reduces_by_autograd, "the script calls allreduce of torch.distributed itself"),
        (reduces_by_function, "the script calls all_reduce of torch.distributed itself"),
        (waits, "the script calls barrier of torch.distributed itself"),
        (trains_twice, "Net is trained further after an update in the same step"),
        (follows, "parameters or optimizer state"),
        (evaluates, ""),
    ],
)
@pytest.mark.parametrize("shrunk", [False, True])
def test_bodies(body, says, shrunk, tmp_path: Path, page, monkeypatch, caplog):
    monkeypatch.setenv("TASKD_RECOVER_STRATEGY", ELASTIC)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2])
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script, shrunk)

    def run() -> None:
        for attempt in lab.job.batches(data):
            with attempt as (step, (x,)):
                body(script, step, x)

    if shrunk and says:
        refused(lab, says, run)
    else:
        run()
        assert lab.loop._inelastic().startswith(says) and bool(lab.loop._inelastic()) == bool(says)
        told = [r.message for r in caplog.records if "not possible" in r.message]
        assert len(told) == bool(says and not shrunk)
        assert all(says in text and "job.shares" in text for text in told)


@pytest.mark.parametrize("shares", [False, True])
def test_parameters_that_change_behind_their_version(shares, tmp_path: Path, page):
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)
    follower = script.model.module.norm.weight

    def run() -> None:
        for attempt in lab.job.steps(2) if shares else lab.job.batches(data):
            with attempt as given:
                step = given if shares else given[0]
                script.clear(step)
                for place in lab.job.shares(step):
                    follower.data.mul_(0.9)
                    script.share(step, samples(step, place))
                script.update(step)

    refused(lab, "parameters or optimizer state change while the share of one rank", run)


def test_nothing_is_watched_without_the_strategy(tmp_path: Path, page, monkeypatch):
    monkeypatch.setenv("TASKD_RECOVER_STRATEGY", "recover")
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script, shrunk=False)
    own = dist.ProcessGroup.__dict__["allreduce"]
    for attempt in lab.job.batches(data):
        with attempt as (step, (x,)):
            assert dist.ProcessGroup.__dict__["allreduce"] is own
            script.clear(step)
            script.share(step, x)
            script.update(step)
            assert not any(m._forward_pre_hooks for m in script.model.modules())
            if step > 1:  # DDP's order is known by then
                assert not any(map(others_hooks, script.model.parameters()))
    assert lab.loop._inelastic() == ""


def test_a_loop_left_between_two_shares(tmp_path: Path, page):
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)
    for attempt in lab.job.batches(data):
        with attempt as (step, (x,)):
            script.clear(step)
            script.share(step, x)
            script.update(step)
        break
    told = lab.line.last(from_rank.RankRaised)
    assert told.refused and "step 0 was left by break before the shares of all ranks" in told.text


def test_a_loop_left_between_two_steps(tmp_path: Path, page):
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)
    for attempt in lab.job.batches(data):
        if attempt.step == 2:
            break
        with attempt as (step, (x,)):
            script.clear(step)
            script.share(step, x)
            script.update(step)
    assert not [m for m in lab.line.said if isinstance(m, from_rank.RankRaised)]


def test_an_attempt_that_is_not_entered(tmp_path: Path, page):
    lab = started(tmp_path, page, Script())
    with pytest.raises(RuntimeError, match="the attempt was not entered or not left"):
        for _ in lab.job.batches(loader(0)):
            pass


def test_gradients_that_are_cleared_within_a_share(tmp_path: Path, page):
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.batches(data):
            with attempt as (step, (x,)):
                for part in (x[:3], x[3:]):
                    script.clear(step)
                    with script.model.no_sync():
                        script.share(step, part)
                script.update(step)

    refused(lab, "cleared or exchanged between two backwards", run)


def test_shares_that_do_not_agree_about_the_update(tmp_path: Path, page):
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.batches(data):
            with attempt as (step, (x,)):
                script.clear(step)
                script.share(step, x)
                if script.model.module.last.weight.grad.norm() == 0:
                    script.update(step)

    refused(lab, "some shares of a step update the parameters and others do not", run)


@pytest.mark.parametrize("synced", [True, False])
def test_gradients_that_are_changed_while_they_wait(synced, tmp_path: Path, page):
    """Averages may be: every rank does the same to the same."""
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.batches(data):
            with attempt as (step, (x,)):
                script.model.require_backward_grad_sync = synced or step % 2 == 1
                script.share(step, x)
                torch.nn.utils.clip_grad_value_(script.model.parameters(), 0.01)
                if step % 2:
                    script.update(step)
                    script.clear(step)

    if synced:
        run()
        assert not lab.failures()
    else:
        refused(lab, "gradients that wait for a later step were changed", run)


def test_an_update_that_computes_gradients(tmp_path: Path, page):
    script, data = Script(), loader(0)
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.batches(data):
            with attempt as (_, (x,)):
                script.optimizer.step(lambda: script.loss(x).backward())

    refused(lab, "closure", run)


class Uneven(DistributedSampler):
    def __iter__(self):
        return iter(list(super().__iter__())[: 20 - 5 * self.longer])

    def __len__(self) -> int:
        return 20

    @property
    def longer(self) -> bool:
        return self.rank == self.which


@pytest.mark.parametrize(("which", "says"), [(0, "more"), (1, "fewer")])
def test_loaders_of_different_lengths(which, says, tmp_path: Path, page):
    script = Script()
    data = loader(0).dataset
    sampler = Uneven(data, 3, 0)
    sampler.which = which
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.batches(DataLoader(data, 5, sampler=sampler)):
            with attempt as (step, (x,)):
                script.clear(step)
                script.share(step, x)
                script.update(step)

    refused(lab, f"the loader of rank 1, which is away, has {says} batches", run)


def test_a_loader_that_cannot_be_read_for_others(tmp_path: Path, page):
    lab = started(tmp_path, page, Script())
    with pytest.raises(RuntimeError):  # nobody else could try another way here
        for _ in lab.job.batches(DataLoader(loader(0).dataset, 5)):
            pass
    (why,) = lab.failures()
    assert "batches of another rank cannot be had from DataLoader: give its torch" in why
