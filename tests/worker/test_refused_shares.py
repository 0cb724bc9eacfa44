"""What a script does that cannot be right where ranks are away is refused by name, and in a full
job said beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from taskd.messages import from_rank
from taskd.worker.state.given import WouldDiverge
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab, with_seed
from tests.worker.test_shares import Script, loader, samples

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


def waits(script: Script, step: int, x: torch.Tensor) -> None:
    script.share(step, x)
    dist.barrier()
    script.update(step)


def trains_twice(script: Script, step: int, x: torch.Tensor) -> None:
    for part in (x[:3], x[3:]):
        script.clear(step)
        script.share(step, part)
        script.update(step)


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
        (waits, "the script calls barrier of torch.distributed itself"),
        (trains_twice, "Net is trained further after an update in the same step"),
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
    own = dist.ProcessGroup.__dict__["allreduce"]
    assert not hasattr(own, "__closure__") or own.__closure__ is None  # torch's own again


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
            assert not any(
                p._post_accumulate_grad_hooks for p in list(script.model.parameters()) if step > 1
            )  # DDP's order is known by then
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


# -- loops over job.steps --------------------------------------------------------------------------


def without(lab: Lab, script: Script, step: int) -> None:
    script.share(step, samples(step, 0))
    script.update(step)


def no_gradients(lab: Lab, script: Script, step: int) -> None:
    script.update(step)


def inside(lab: Lab, script: Script, step: int) -> None:
    for place in lab.job.shares(step):
        script.share(step, samples(step, place))
        script.update(step)


def half(lab: Lab, script: Script, step: int) -> None:
    for place in lab.job.shares(step):
        script.share(step, samples(step, place))
        if place:
            break
    script.update(step)


def half_without_update(lab: Lab, script: Script, step: int) -> None:
    for place in lab.job.shares(step):
        script.share(step, samples(step, place))
        break


def afterwards(lab: Lab, script: Script, step: int) -> None:
    for place in lab.job.shares(step):
        script.share(step, samples(step, place))
    script.share(step, samples(step, 0))


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (without, "a backward outside the loop over job.shares"),
        (no_gradients, "updated before the loop over job.shares"),
        (inside, "updated before the loop over job.shares"),
        (half, "updated before the loop over job.shares"),
        (half_without_update, "was left before its last share"),
        (afterwards, "a backward outside the loop over job.shares"),
    ],
)
def test_bodies_with_shares(body, says, tmp_path: Path, page):
    script = Script()
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.steps(3):
            with attempt as step:
                script.clear(step)
                body(lab, script, step)

    refused(lab, says, run)


def gathered(net: torch.nn.Module) -> None:
    for module in net.modules():
        for name, parameter in module.named_parameters(recurse=False):
            setattr(module, name, torch.nn.Parameter(parameter.detach().clone()))


@pytest.mark.parametrize("inside", [False, True])
def test_a_loop_over_shares_that_raises_leaves_the_rank_as_it_was(inside, tmp_path: Path, page):
    """`inside`: in a forward, where FSDP has put other parameters into its modules."""
    script = Script()
    lab = started(tmp_path, page, script)
    found = []

    def run() -> None:
        for attempt in lab.job.steps(3):
            with attempt as step:
                for place in lab.job.shares(step):
                    if place == 1:
                        if inside:
                            gathered(script.model.module)
                        raise ValueError("a fault of the script")
                    found.append((place, torch.rand(1), lab.session.random.snapshot()))

    with pytest.raises(ValueError, match="a fault of the script"):
        run()
    assert [place for place, *_ in found] == [0]
    assert lab.session.random.snapshot() == found[0][-1]
    assert not lab.line.last(from_rank.RankRaised).refused


def test_steps_of_shares(tmp_path: Path, page):
    lab = started(tmp_path, page, Script())
    with pytest.raises(RuntimeError, match="outside an attempt"):
        next(lab.job.shares(0))
    for attempt in lab.job.steps(1):
        with attempt as step:
            with pytest.raises(ValueError, match=r"job.shares\(3\): the present step is 0"):
                next(lab.job.shares(3))
            assert list(lab.job.shares(step)) == [0, 1, 2]


def test_a_loop_without_shares_is_told_in_a_full_job(tmp_path: Path, page):
    script = Script()
    lab = started(tmp_path, page, script, shrunk=False)
    assert lab.loop._inelastic() == ""
    for attempt in lab.job.steps(2):
        with attempt as step:
            script.clear(step)
            if step == 0:
                without(lab, script, step)
            else:
                for place in lab.job.shares(step):
                    script.share(step, samples(step, place))
                script.update(step)
        why = lab.loop._inelastic()
        assert ("did not go through job.shares" in why) == (step == 0), why
