"""What a script does that cannot be right where ranks are away is refused by name, and in a full
job said beforehand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from taskd.messages import from_rank
from taskd.worker.state.given import WouldDiverge
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab, with_seed
from tests.worker.elastic_scripts import Script, others_hooks
from tests.worker.test_shares import samples

ELASTIC = "elastic-training,dump"


def whole(lab: Lab, script: Script, step: int) -> None:
    """A step as it should be."""
    script.clear(step)
    for place in lab.job.shares(step):
        script.share(step, samples(step, place))
    script.update(step)


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


def test_parameters_that_change_behind_their_version(tmp_path: Path, page):
    """As a momentum encoder does in its forward."""
    script = Script()
    lab = started(tmp_path, page, script)
    follower = script.model.module.norm.weight

    def run() -> None:
        for attempt in lab.job.steps(2):
            with attempt as step:
                script.clear(step)
                for place in lab.job.shares(step):
                    follower.data.mul_(0.9)
                    script.share(step, samples(step, place))
                script.update(step)

    refused(lab, "parameters or optimizer state change while the share of one rank", run)


def test_nothing_is_watched_without_the_strategy(tmp_path: Path, page, monkeypatch):
    monkeypatch.setenv("TASKD_RECOVER_STRATEGY", "recover")
    script = Script()
    lab = started(tmp_path, page, script, shrunk=False)
    own = dist.ProcessGroup.__dict__["allreduce"]
    for attempt in lab.job.steps(4):
        with attempt as step:
            assert dist.ProcessGroup.__dict__["allreduce"] is own
            whole(lab, script, step)
            assert not any(m._forward_pre_hooks for m in script.model.modules())
            if step > 1:  # DDP's order is known by then
                assert not any(map(others_hooks, script.model.parameters()))
    assert lab.loop._inelastic() == ""


@pytest.mark.parametrize("shrunk", [False, True])
def test_batches_are_of_one_rank(shrunk, tmp_path: Path, page, monkeypatch, caplog):
    """Said beforehand in a full job; refused where ranks are away already."""
    monkeypatch.setenv("TASKD_RECOVER_STRATEGY", ELASTIC)
    script = Script()
    lab = started(tmp_path, page, script, shrunk)
    says = "job.batches hands out the batches of this rank alone"

    def run() -> None:
        if shrunk:
            for attempt in lab.job.steps(2):
                with attempt as step:
                    whole(lab, script, step)
        for attempt in lab.job.batches([samples(step, 0) for step in range(3)]):
            with attempt as (step, x):
                script.clear(step)
                script.share(step, x)
                script.update(step)

    if shrunk:
        refused(lab, says, run)
        assert lab.loop.attempts.step == 2
    else:
        run()
        assert lab.loop._inelastic().startswith(says)
        assert len([r for r in caplog.records if says in r.message]) == 1


@pytest.mark.parametrize("synced", [True, False])
def test_gradients_that_are_changed_while_they_wait(synced, tmp_path: Path, page):
    """Averages may be: every rank does the same to the same."""
    script = Script()
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.steps(4):
            with attempt as step:
                script.model.require_backward_grad_sync = synced or step % 2 == 1
                for place in lab.job.shares(step):
                    script.share(step, samples(step, place))
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
    script = Script()
    lab = started(tmp_path, page, script)

    def run() -> None:
        for attempt in lab.job.steps(2):
            with attempt as step:
                for place in lab.job.shares(step):
                    script.share(step, samples(step, place))
                script.optimizer.step(lambda: script.loss(samples(step, 0)).backward())

    refused(lab, "a backward outside the loop over job.shares", run)


def test_an_attempt_that_is_not_entered(tmp_path: Path, page):
    lab = started(tmp_path, page, Script())
    with pytest.raises(RuntimeError, match="the attempt was not entered or not left"):
        for _ in lab.job.steps(2):
            pass
