"""What of the gradients that an attempt leaves behind is recorded, and what is seen of those that
are not."""

from __future__ import annotations

import pytest
import torch

from taskd.worker.state.gradients import GRAD, MAIN, Gradients


class Script:
    """A training loop as its attempts are seen by Gradients."""

    def __init__(self) -> None:
        self.weights = [torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3))]
        self.optimizers = [torch.optim.SGD([w], lr=0.1) for w in self.weights]
        self.gradients = Gradients(self.optimizers)
        self.gradients.watch(self.weights)
        for optimizer in self.optimizers:
            optimizer.register_step_pre_hook(lambda o, *_: self.gradients.updating(o))

    def backward(self) -> None:
        sum(w.sum() for w in self.weights).backward()

    def clear(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def attempt(self, clear_first: bool = False, update: tuple[int, ...] = (0, 1)):
        if clear_first:
            self.clear()
        self.backward()
        for i in update:
            self.optimizers[i].step()
        return self.gradients.committed()


@pytest.fixture
def script() -> Script:
    return Script()


def names(left) -> list:
    return [(row.index, row.name) for row in left.rows]


def test_what_waits_for_an_update_is_recorded(script):
    left = script.attempt(update=())
    assert names(left) == [(0, GRAD), (1, GRAD)] and not left.skipped
    left = script.attempt(update=(0,))
    assert (1, GRAD) in names(left)


def test_what_an_update_has_used_is_recorded_once_the_script_has_been_seen_to_go_on_with_it(script):
    for _ in range(2):
        left = script.attempt(clear_first=True)
        assert names(left) == [] and left.skipped == (0, 1)
    # cleared already when the attempt ends: nothing is left
    script.clear()
    assert script.gradients.now().skipped == ()


def test_the_first_step_that_goes_on_with_them_is_not_repeated(script):
    """The one before is: nothing had been left then."""
    assert script.attempt().skipped == (0, 1)
    script.backward()
    script.optimizers[0].step()
    assert script.gradients.broken and script.gradients.interrupted()
    script.optimizers[1].step()
    left = script.gradients.committed()
    assert names(left) == [(0, GRAD), (1, GRAD)] and not script.gradients.broken


def test_a_closure_clears_them_within_the_update(script):
    """As Lightning does."""
    for weight, optimizer in zip(script.weights, script.optimizers, strict=True):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert script.gradients.committed().skipped == (0, 1)
    for goes_on in (False, False, True):
        for optimizer in script.optimizers:
            script.gradients.updating(optimizer, closure=True)
        assert not script.gradients.broken
        if not goes_on:
            script.clear()
        script.backward()
        for optimizer in script.optimizers:
            script.gradients.updated(optimizer)
        assert script.gradients.broken == goes_on
        left = script.gradients.committed()
    assert names(left) == [(0, GRAD), (1, GRAD)]


def test_a_script_that_goes_on_with_used_gradients_is_believed_from_then_on(script):
    for _ in range(3):
        script.attempt(clear_first=True)
    script.backward()  # into the gradients of the attempt before, which are in no record
    assert script.gradients.interrupted() and script.gradients.broken
    script.gradients.abandon()
    for _ in range(2):
        assert names(script.attempt()) == [(0, GRAD), (1, GRAD)]
        assert not script.gradients.broken


def test_a_pause_before_anything_was_done_with_them_breaks_nothing(script):
    for _ in range(2):
        script.attempt(clear_first=True)
    assert not script.gradients.interrupted()
    script.clear()
    script.backward()
    assert not script.gradients.interrupted()


def test_they_are_put_back_on_a_survivor(script):
    left = script.attempt(update=())
    kept = [(r.index, r.name, r.tensor.clone()) for r in left.rows]
    script.backward()
    script.gradients.abandon()
    script.gradients.restore(kept, ())
    assert [w.grad.tolist() for w in script.weights] == [[1, 1], [1, 1, 1]]
    script.gradients.restore([], ())
    assert [w.grad for w in script.weights] == [None, None]


def test_a_replacement_notices_that_it_lacks_what_the_script_uses(script):
    for _ in range(2):
        left = script.attempt(clear_first=True)
    replacement = Script()
    replacement.gradients.restore([], left.skipped)
    assert replacement.gradients.now().skipped == (0, 1)
    replacement.backward()
    replacement.optimizers[0].step()
    assert replacement.gradients.broken
    usual = Script()
    usual.gradients.restore([], left.skipped)
    usual.attempt(clear_first=True)
    assert not usual.gradients.broken


def test_a_wrappers_main_gradients_are_recorded_and_stay_the_same_memory(script):
    buffer = torch.arange(2.0)
    script.weights[0].main_grad = buffer
    script.gradients.watch(script.weights)
    left = script.gradients.now()
    assert names(left) == [(0, MAIN)]
    kept = [(0, MAIN, buffer.clone())]
    buffer.zero_()
    script.gradients.restore(kept, ())
    assert buffer.tolist() == [0, 1] and script.weights[0].main_grad is buffer


@pytest.mark.parametrize(
    "row",
    [
        (2, GRAD, torch.ones(2)),
        (0, "data", torch.ones(2)),
        (0, GRAD, torch.ones(3)),
        (-1, GRAD, torch.ones(2)),
    ],
)
def test_gradients_of_another_model_are_refused(script, row):
    with pytest.raises(RuntimeError, match="the record has a"):
        script.gradients.restore([row], ())


def test_change_between_two_attempts_is_seen(script):
    before = script.attempt(update=())
    assert script.gradients.now().same(before)
    script.weights[0].grad.zero_()
    assert not script.gradients.now().same(before)
    before = script.gradients.now()
    script.weights[1].grad = None
    assert not script.gradients.now().same(before)


def test_buckets_that_gradients_were_views_of_are_known():
    """DDP(gradient_as_bucket_view=True) writes them at each step, whatever zero_grad() does."""
    net = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    gradients = Gradients([optimizer])
    bucket = torch.zeros(6)
    views = [bucket[:4].view(2, 2), bucket[4:]]  # the reducer holds them
    net.weight.grad, net.bias.grad = views
    gradients.updating(optimizer)
    optimizer.zero_grad()
    assert [id(v) for v in gradients.met()] == [id(v) for v in views]
