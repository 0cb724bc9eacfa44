"""What a loop over job.steps does with its shares, and between two steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from taskd.messages import from_rank
from tests.worker import elastic_lab
from tests.worker.elastic_lab import Lab
from tests.worker.elastic_scripts import Script
from tests.worker.test_refused_shares import ELASTIC, refused, started, whole
from tests.worker.test_shares import samples


@pytest.fixture
def page(tmp_path):
    with elastic_lab.alone(tmp_path) as page:
        yield page


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


def clears(lab: Lab, script: Script, step: int) -> None:
    for place in lab.job.shares(step):
        script.clear(step)
        script.share(step, samples(step, place))
    script.update(step)


def clips(lab: Lab, script: Script, step: int) -> None:
    for place in lab.job.shares(step):
        script.share(step, samples(step, place))
        torch.nn.utils.clip_grad_norm_(script.model.parameters(), 0.1)
    script.update(step)


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
        (clears, "cleared or changed inside the loop over job.shares"),
        (clips, "cleared or changed inside the loop over job.shares"),
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


def test_gradients_cleared_inside_are_told_in_a_full_job(tmp_path: Path, page):
    script = Script()
    lab = started(tmp_path, page, script, shrunk=False)
    for attempt in lab.job.steps(4):
        with attempt as step:
            if step < 2:
                whole(lab, script, step)
            else:
                assert lab.loop._inelastic() == ""
                clears(lab, script, step)
                break
    assert "cleared inside the loop over job.shares" in lab.loop._inelastic()


# -- collectives -----------------------------------------------------------------------------------


def sums() -> None:
    dist.all_reduce(torch.ones(1))


def gathers() -> None:
    dist.all_gather_object([None], 1)


def is_told_or_waits() -> None:
    dist.barrier()
    dist.broadcast(torch.ones(1), 0)


@pytest.mark.parametrize(
    ("between", "says"),
    [
        (sums, "the script calls allreduce of torch.distributed itself between two steps"),
        (gathers, " of torch.distributed itself between two steps"),
        (is_told_or_waits, ""),
    ],
)
@pytest.mark.parametrize("shrunk", [False, True])
def test_collectives_between_two_passes(
    between, says, shrunk, tmp_path: Path, page, monkeypatch, caplog
):
    monkeypatch.setenv("TASKD_RECOVER_STRATEGY", ELASTIC)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1, 2])
    script = Script()
    lab = started(tmp_path, page, script, shrunk)
    gathers()  # set-up is made by all ranks, those that come back, too

    def run() -> None:
        for number in (1, 2):
            for attempt in lab.job.steps(2 * number):
                with attempt as step:
                    whole(lab, script, step)
                    dist.all_reduce(torch.ones(1))  # of all shares
            between()

    if shrunk and says:
        refused(lab, says, run)
        return
    run()
    why = lab.loop._inelastic()
    assert says in why and bool(why) == bool(says), why
    told = [r.message for r in caplog.records if "not possible" in r.message]
    assert len(told) == bool(says) and all(says in text for text in told)
