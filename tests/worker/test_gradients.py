"""What of the gradients that an attempt leaves behind is recorded, and what is seen of those that
are not."""

from __future__ import annotations

import pytest
import torch

from taskd.worker.state import gradients, plain
from taskd.worker.state.gradients import GRAD, MAIN, Gradients
from taskd.worker.state.part import Content


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
        return self.committed()

    def committed(self):
        self.gradients.committed()
        return self.gradients.take(0)


@pytest.fixture
def script() -> Script:
    return Script()


def names(left: Content) -> list:
    return [(index, name) for index, name, _ in gradients.read(left)[0]]


def skipped(left: Content) -> list[int]:
    return gradients.read(left)[1]


def content(skipped: list[int], *rows) -> Content:
    described, memory = [], b""
    for index, name, tensor in rows:
        shape, data = plain.tensor_bytes(tensor)
        described.append((index, name, *shape))
        memory += bytes(data)
    return Content(plain.encode((skipped, described)), memory)


def test_what_waits_for_an_update_is_recorded(script):
    left = script.attempt(update=())
    assert names(left) == [(0, GRAD), (1, GRAD)] and not skipped(left)
    left = script.attempt(update=(0,))
    assert (1, GRAD) in names(left)


def test_what_an_update_has_used_is_recorded_once_the_script_has_been_seen_to_go_on_with_it(script):
    for _ in range(2):
        left = script.attempt(clear_first=True)
        assert names(left) == [] and skipped(left) == [0, 1]
    # cleared already when the attempt ends: nothing is left
    script.clear()
    assert skipped(script.gradients.take(0)) == []


def test_the_first_step_that_goes_on_with_them_is_not_repeated(script):
    """The one before is: nothing had been left then."""
    assert skipped(script.attempt()) == [0, 1]
    script.backward()
    script.optimizers[0].step()
    assert script.gradients.broken and script.gradients.interrupted()
    script.optimizers[1].step()
    left = script.committed()
    assert names(left) == [(0, GRAD), (1, GRAD)] and not script.gradients.broken


def test_a_closure_clears_them_within_the_update(script):
    """As Lightning does."""
    for weight, optimizer in zip(script.weights, script.optimizers, strict=True):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert skipped(script.committed()) == [0, 1]
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
        left = script.committed()
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
    kept = left.kept()
    script.backward()
    script.gradients.abandon()
    script.gradients.put(kept)
    assert [w.grad.tolist() for w in script.weights] == [[1, 1], [1, 1, 1]]
    script.gradients.put(content([]))
    assert [w.grad for w in script.weights] == [None, None]


def test_a_replacement_notices_that_it_lacks_what_the_script_uses(script):
    for _ in range(2):
        left = script.attempt(clear_first=True)
    replacement = Script()
    replacement.gradients.put(left)
    assert skipped(replacement.gradients.take(0)) == [0, 1]
    replacement.backward()
    replacement.optimizers[0].step()
    assert replacement.gradients.broken
    usual = Script()
    usual.gradients.put(left)
    usual.attempt(clear_first=True)
    assert not usual.gradients.broken


def test_a_wrappers_main_gradients_are_recorded_and_stay_the_same_memory(script):
    buffer = torch.arange(2.0)
    script.weights[0].main_grad = buffer
    script.gradients.watch(script.weights)
    left = script.gradients.take(0)
    assert names(left) == [(0, MAIN)]
    kept = left.kept()
    buffer.zero_()
    script.gradients.put(kept)
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
        script.gradients.put(content([], row))


def test_change_between_two_attempts_is_seen(script):
    before = script.attempt(update=())
    assert script.gradients.take(0) is before
    script.weights[0].grad.zero_()
    assert script.gradients.take(0) != before
    before = script.gradients.take(0)
    script.weights[1].grad = None
    assert script.gradients.take(0) != before


def test_a_parameter_that_is_added_before_others_renumbers_them(script):
    script.backward()
    assert names(script.gradients.take(0)) == [(0, GRAD), (1, GRAD)]
    script.gradients.watch([torch.nn.Parameter(torch.ones(1)), *script.weights])
    assert names(script.gradients.take(0)) == [(1, GRAD), (2, GRAD)]


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


@pytest.mark.parametrize(
    "described",
    [
        [(0, "grad", "float32", [2, 3], [3, 1])],
        [(0, "grad", "float32", [1 << 40, 1 << 40], [1, 1])],
        [(0, "grad", "float32", [-2], [1])],
        [(0, "grad", "os", [2], [1])],
        [("a", "grad", "float32", [2], [1])],
        [(0, 1, "float32", [2], [1])],
        [],
        ["ab"],
        None,
    ],
    ids=str,
)
def test_a_key_holder_who_writes_nonsense_is_refused(described):
    with pytest.raises(RuntimeError, match="cannot be read"):
        gradients.read(Content(plain.encode(([], described)), bytes(8)))
