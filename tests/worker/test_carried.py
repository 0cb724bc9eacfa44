"""What goes from one attempt to the next without being protected."""

from __future__ import annotations

import copy

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from taskd.worker.discovery import carried
from taskd.worker.state.given import WouldDiverge


class Script:
    """A loop whose body is called twice; `found` is what is said after the second time."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.net.parameters())

    def protected(self):
        yield from self.net.parameters()
        yield from (p.grad for p in self.net.parameters() if p.grad is not None)
        for state in self.optimizer.state.values():
            yield from state.values()

    def step(self, extra=0.0):
        loss = self.net(torch.randn(8, 4)).sum() + extra
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def found(self, body, own=(), held=(), **variables):
        """`held`: tensors that are recorded if their versions change."""

        def glance():
            return carried.glance([*self.protected(), *held], self.protected())

        self.kept = body()
        before = glance()
        self.kept = body()
        found = carried.compare(before, glance(), own)
        return carried.describe(found, [("main", {"self": self, **variables})])


def test_the_usual_loop_carries_nothing():
    script = Script()
    table = torch.randn(100, 4)
    assert script.found(script.step, table=table) == []


def test_tensors_that_are_written_to_in_place():
    script = Script()
    average = {k: p.detach().clone() for k, p in script.net.named_parameters()}
    total = torch.zeros(())

    def body():
        loss = script.step()
        total.add_(loss.detach())
        for name, parameter in script.net.named_parameters():
            average[name].lerp_(parameter.detach(), 0.1)
        return loss

    texts = script.found(body, average=average, total=total)
    assert [t.partition(" ")[0] for t in texts] == [
        f"main.average.{k}" for k in sorted(average)
    ] + ["main.total"]
    assert all("Give it to protect()" in t for t in texts)


def test_tensors_that_are_written_to_where_torch_does_not_count():
    script, array = Script(), numpy.zeros(1000)
    ours, view, counted = torch.zeros(16), torch.from_numpy(array), torch.zeros(4)

    def body():
        ours.data.add_(1)
        numpy.add(array, 1, out=array)
        counted.add_(1)
        return script.step()

    found = script.found(body, held=[ours, view, counted], ours=ours, view=view, counted=counted)
    assert [text.partition(" ")[0] for text in found] == ["main.ours", "main.view"]
    assert all("under torch.no_grad()" in text for text in found)
    # that of another module, but not what may be received
    other = torch.nn.Linear(1, 1)

    def both():
        view.data.add_(1)
        other.weight.data.add_(1)
        return script.step()

    (text,) = script.found(both, other=other, view=view)
    assert text.startswith("main.other (Linear)") and "Give it to protect()" in text


@pytest.mark.parametrize("refuses", [False, True])
def test_what_is_found_is_said_or_ends_the_job(refuses, caplog):
    script, total = Script(), torch.zeros(())
    watch = carried.Watch(script.protected, script.protected, refuses=refuses)
    for _ in range(2):
        watch.committed()
        total.add_(1)
    assert watch.due or refuses
    if refuses:
        with pytest.raises(WouldDiverge, match="TASKD_CARRIED=refuse: not seen by taskd: "):
            watch.committed()
    else:
        watch.committed()
        assert "not seen by taskd: " in caplog.text
    assert not watch.due


def test_a_module_that_was_not_given_is_named_once_and_many_tensors_in_one_line():
    """An average of the weights has parameters, which are written without a gradient."""
    script = Script()
    average = copy.deepcopy(script.net).requires_grad_(False)
    sums: list[torch.Tensor] = []

    def body():
        loss = script.step()
        for total in sums:
            total.add_(1.0)
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(script.net.parameters()), 0.1)
        return loss

    (module,) = script.found(body, average=average)
    assert module.startswith("main.average (Sequential): it is written in every step"), module
    sums += [torch.zeros(()) for _ in range(carried.MOST + 2)]
    (many,) = script.found(body, average=average, sums=sums)
    assert many.startswith("main.average (Sequential), main.sums[0] (a tensor of shape ()), ")
    assert " and 3 more: it is written" in many


def test_a_result_whose_graph_reaches_back():
    script = Script()

    def body():
        loss = script.step()
        script.sum = loss + getattr(script, "sum", 0.0)
        return loss

    (text,) = script.found(body)
    assert text.startswith("main.self.sum (") and "detach()" in text


def test_a_result_that_is_only_held_reaches_nowhere():
    """As what `loss = job.call(train)` has assigned, until the next call returns."""
    script, losses = Script(), []

    def body():
        losses.append(script.step())
        return losses[-1]

    assert script.found(body, losses=losses) == []


def test_a_view_whose_node_torch_refuses_to_name():
    script = Script()
    base = torch.zeros(4)
    with torch.no_grad():
        view = base.view(2, 2)
    base.add_(torch.ones(4, requires_grad=True))

    def body():
        script.sum = script.step() + base.sum()
        return script.sum

    (text,) = script.found(body, view=view, base=base)
    assert text.startswith("main.self.sum ("), text


def test_a_loader_that_the_script_steps():
    script = Script()
    batches = iter(DataLoader(torch.randn(64, 4), 8))

    def body():
        next(batches)
        return script.step()

    (text,) = script.found(body, batches=batches)
    assert text.startswith("main.batches (a DataLoader's iterator)")
    assert "job.batches(loader)" in text
    assert script.found(body, own=[batches], batches=batches) == []


def test_a_loader_that_is_a_generator_draws_from_its_own_iterator():
    def ahead():
        batches = iter(DataLoader(torch.randn(64, 4), 8))
        kept = next(batches)
        for batch in batches:
            yield kept
            kept = batch

    script, iterator = Script(), ahead()

    def body():
        next(iterator)
        return script.step()

    assert len(script.found(body, iterator=iterator)) == 1
    assert script.found(body, own=[iterator], iterator=iterator) == []


@pytest.mark.parametrize("delegates", [False, True])
def test_a_loader_inside_a_generator_of_our_own(delegates):
    script, loader = Script(), DataLoader(torch.randn(32, 4), batch_size=4)

    def batches():
        while True:
            if delegates:
                yield from loader
            for batch in loader:
                yield batch + 1

    ours, theirs = batches(), batches()

    def body(source):
        next(source)
        return script.step()

    assert script.found(lambda: body(ours), own=[ours]) == []
    (text,) = script.found(lambda: body(theirs), own=[ours])
    assert "the script draws batches from it by itself" in text
