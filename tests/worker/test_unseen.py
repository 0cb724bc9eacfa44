"""What a script forgets to give to protect(): found by its name, or said."""

from __future__ import annotations

import copy
import functools
import gc
import random
import threading
from types import ModuleType, SimpleNamespace

import numpy
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, RandomSampler

from taskd.worker.discovery import project, reach, unseen


def script(**variables):
    """The roots of a script with these variables in its main()."""
    return [("main", variables)]


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def names(found):
    return sorted(found.objects)


# -- names -----------------------------------------------------------------------------------------


class Augment:
    __slots__ = ("dice", "never")
    shared = random.Random(3)

    def __init__(self) -> None:
        self.dice = numpy.random.default_rng(1)

    def apply(self, x):
        return x


def stream():
    own = torch.Generator()
    while True:
        yield torch.rand((), generator=own)


def closure():
    hidden = torch.Generator()
    return lambda: hidden


def generators_of(**variables):
    return sorted(unseen.search({"model": net()}, script(**variables)).generators)


def test_generators_are_found_wherever_a_variable_leads():
    running = stream()
    next(running)
    data = [1, 2, 3]
    assert generators_of(g=torch.Generator(), r=random.Random(1)) == ["main.g", "main.r"]
    assert generators_of(parts=[{"x": (torch.Generator(),)}]) == ["main.parts[0].x[0]"]
    assert generators_of(a=Augment()) == ["main.a.dice"]
    assert generators_of(bound=Augment().apply) == ["main.bound.__self__.dice"]
    assert generators_of(made=closure()) == ["main.made.hidden"]
    assert generators_of(running=running) == ["main.running.own"]
    assert generators_of(p=functools.partial(print, random.Random(1), end=random.Random(2))) == [
        "main.p.<argument 0>",
        "main.p.end",
    ]
    assert generators_of(loader=DataLoader(data, shuffle=True, generator=torch.Generator())) == [
        "main.loader.generator"
    ]
    sampler = RandomSampler(data, generator=torch.Generator())
    assert generators_of(loader=DataLoader(data, sampler=sampler)) == [
        "main.loader.batch_sampler.sampler.generator"
    ] or generators_of(loader=DataLoader(data, sampler=sampler)) == [
        "main.loader.sampler.generator"
    ]
    assert (
        generators_of(own=random._inst, theirs=torch.default_generator, none=random.SystemRandom())
        == []
    )


def test_a_class_of_the_scripts_own_is_looked_into_and_a_librarys_is_not():
    own = {"__name__": __name__, "Augment": Augment, "library": random}
    assert [name for name, _ in reach.find([("", own)], lambda kind: kind is random.Random)] == [
        "Augment.shared"
    ]


def test_names_do_not_depend_on_the_process():
    def once():
        return [
            name
            for name, _ in reach.find(
                script(a=Augment(), m=net(), l=[torch.Generator()]), lambda kind: True
            )
        ]

    assert once() == once()


def test_looking_runs_no_code_and_reads_no_data():
    class Proxy:
        def __getattribute__(self, name):
            raise AssertionError(f"{name} was asked for")

    class Sneaky(dict):
        def items(self):
            raise AssertionError("items() was called")

    variables = {
        "proxy": Proxy(),
        "sneaky": Sneaky(g=random.Random(1)),
        "data": [random.Random(1)] * (reach.ITEMS + 1),
    }
    assert generators_of(**variables) == ["main.sneaky.g"]


def test_the_callers_own_variables_are_roots():
    mine = random.Random(1)
    found = {
        id(value): name
        for name, value in reach.find(reach.of_caller(), lambda kind: kind is random.Random)
    }
    assert found[id(mine)].endswith("test_the_callers_own_variables_are_roots.mine")


def test_modules_of_others_are_no_roots():
    for file, own in (
        ("/home/me/data.py", True),
        (random.__file__, False),
        ("<frozen data>", False),
        ("/x/site-packages/a.py", False),
    ):
        module = ModuleType("data")
        module.__file__ = file
        assert project.is_own("data", module) is own
    assert not project.is_own("torch.random", torch.random)


# -- what works on what is protected ---------------------------------------------------------------


def test_a_scheduler_a_scaler_and_an_average_are_taken_in():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    variables = {
        "model": model,
        "optimizer": optimizer,
        "plan": lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer), lr_scheduler.StepLR(optimizer, 2)], [3]
        ),
        "ema": AveragedModel(model),
        "scaler": torch.amp.GradScaler("cpu"),
        "off": torch.amp.GradScaler("cpu", enabled=False),
    }
    found = unseen.search(
        {"model": model, "optimizer": optimizer}, script(**variables), everything=False
    )
    assert names(found) == ["main.ema", "main.plan", "main.scaler"]
    given = {k: variables[k] for k in ("model", "optimizer", "plan", "ema", "scaler")}
    assert names(unseen.search(given, script(**variables), everything=False)) == []
    inner = given | {"ema": variables["ema"].module}
    assert names(unseen.search(inner, script(**variables), everything=False)) == ["main.ema"]


def test_what_has_nothing_to_do_with_it_is_left_alone():
    model, other = net(), nn.Linear(3, 3)
    theirs = torch.optim.SGD(other.parameters(), 0.1)
    variables = {
        "other": other,
        "theirs": theirs,
        "plan": lr_scheduler.StepLR(theirs, 2),
        "swa": AveragedModel(other),
        "frozen": net(),
    }
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = unseen.search(
        {"model": model, "optimizer": optimizer},
        script(model=model, optimizer=optimizer, **variables),
    )
    assert names(found) == [] and not found.obstacle


def test_an_optimizer_with_the_models_parameters_is_taken_in_with_its_scheduler():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    variables = {"a": lr_scheduler.StepLR(optimizer, 2), "b": optimizer}
    found = unseen.search({"model": model}, script(**variables))
    assert names(found) == ["main.a", "main.b"] and not found.obstacle


def test_a_wrapper_around_a_given_optimizer_is_not_a_second_one():
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, optimizer) -> None:
            self.optimizer = optimizer

        @property
        def param_groups(self):
            return self.optimizer.param_groups

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrapper = Wrapper(optimizer)
    assert (
        names(unseen.search({"model": model, "o": optimizer}, script(w=wrapper), everything=False))
        == []
    )
    assert (
        names(unseen.search({"model": model, "o": wrapper}, script(i=optimizer), everything=False))
        == []
    )


class Average(nn.Module):
    """As libraries have it: beside the model, or around it."""

    def __init__(self, model: nn.Module, around: bool) -> None:
        super().__init__()
        self.copy = copy.deepcopy(model)
        if around:
            self.online = model


@pytest.mark.parametrize("around", [False, True])
def test_an_average_of_another_library_is_taken_in(around):
    model = net()
    variables = {"teacher": net(), "ema": Average(model, around)}
    found = unseen.search({"model": model}, script(model=model, **variables), everything=False)
    assert names(found) == ["main.ema.copy" if around else "main.ema"]


def test_a_wrapper_with_a_state_of_its_own_is_taken_in():
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, optimizer) -> None:
            self.optimizer, self.state = optimizer, {}
            self.param_groups = optimizer.param_groups

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wrapper = Lookahead(optimizer)
    found = unseen.search({"model": model, "o": optimizer}, script(w=wrapper), everything=False)
    assert names(found) == ["main.w"] and found.objects["main.w"] is wrapper
    wrapper.state = None
    del wrapper.state
    found = unseen.search({"model": model, "o": optimizer}, script(w=wrapper), everything=False)
    assert names(found) == []


def test_a_module_whose_parameters_are_optimized_is_taken_in_as_a_whole():
    model, head = net(), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], 0.1)
    found = unseen.search(
        {"model": model, "optimizer": optimizer}, script(parts=SimpleNamespace(head=head))
    )
    assert list(found.objects.items()) == [("main.parts.head", head)]


def test_what_no_variable_leads_to_is_an_obstacle():
    gc.freeze()  # what other tests have left is not searched
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    hidden = threading.local()
    hidden.scheduler = lr_scheduler.StepLR(optimizer, 2)
    given = {"model": model, "optimizer": optimizer}
    text = unseen.search(given, script()).obstacle
    assert "a StepLR" in text and "scheduler=..." in text
    assert unseen.search(given, script(), everything=False).obstacle == ""
    del hidden.scheduler
    assert unseen.search(given, script()).obstacle == ""
    gc.unfreeze()
