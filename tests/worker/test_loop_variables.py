"""Variables of a loop: read and written where they are, or named."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from multiprocessing import shared_memory
from types import SimpleNamespace

import numpy
import pytest
import torch
from torch.utils.data import DataLoader

from taskd.worker.discovery import holders, values
from taskd.worker.discovery.frames import assign
from taskd.worker.discovery.loop_variables import RANGES, LoopVariables
from taskd.worker.discovery.values import ITEMS, LONGEST, NotRecordable
from taskd.worker.state import plain, stored_attributes
from taskd.worker.state.given import WouldDiverge
from taskd.worker.state.stored_attributes import put_attribute, value_of_attribute
from taskd.worker.training.calls import Calls


class Attempt:
    committed = True

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return True


class Steps:
    """Looks at the loop before its first pass, records each, and goes back from the end of the last
    to the beginning of the one before."""

    def __init__(self, variables: LoopVariables, function=None) -> None:
        self.variables, self.function = variables, function

    def __iter__(self):
        self.variables.attach(self.function)
        yield Attempt()
        recorded = plain.encode(self.variables.state_dict())
        yield Attempt()
        self.variables.load_state_dict(plain.decode(recorded))
        yield Attempt()


def warnings(caplog) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def test_local_variables_and_what_they_hold(caplog):
    def loop(steps, out):
        mean, hidden, pair, kept, count = 0.0, torch.zeros(2), (0, torch.zeros(1)), {"n": [0]}, 0
        history, table, seen, found = deque([1]), numpy.zeros(2), {0}, defaultdict(list)
        inner, alias, own = kept["n"], hidden, history
        read = lambda: count
        for attempt in steps:
            with attempt:
                mean = mean + 1
                hidden = hidden + mean
                pair = pair[0] + 1, pair[1] + 1
                kept["n"].append(count)
                count += 1
                history.append(mean)
                table += 1
                seen.add(count)
                found[count].append(mean)
                assert read() == count
            out.append((mean, hidden.tolist(), pair[0], pair[1].item(), count))
        assert kept == {"n": [0, 0, 1]} and inner is kept["n"]
        assert list(history) == [1, 1.0, 2.0] and own is history
        assert table.tolist() == [2, 2] and seen == {0, 1, 2}
        assert found == {1: [1.0], 2: [2.0]} and type(found) is defaultdict
        assert alias.tolist() == [0, 0]  # another object: the loop assigns a new one

    given: list = []
    loop(Steps(LoopVariables([given], refuses=True)), given)
    first, second, again = given
    assert second == again != first
    assert not warnings(caplog)


def test_the_objects_that_are_restored_are_objects():
    """Not None or a number, which others have as well."""

    class Level:
        def __init__(self):
            self.value = None

    given, level = Level(), Level()

    def loop(steps):
        last, seen = None, []
        for attempt in steps:
            with attempt:
                level.value = (level.value or 0) + (last or 1)
                seen.append(1)
                last = 2
                found.append(variables.objects())

    variables, found = LoopVariables([given], False), []
    loop(Steps(variables))
    assert found and all({id(given), id(level)} <= ids for ids in found)
    assert not any({id(None), id(1), id(2)} & ids for ids in found)


def test_a_value_that_is_as_recorded_is_not_touched():
    def loop(steps):
        best, model = [1.0], object()
        tensor = torch.zeros(2)
        version = tensor._version
        for attempt in steps:
            with attempt:
                print(best, tensor.sum(), model, end="")
        return tensor._version - version

    assert loop(Steps(LoopVariables([], refuses=False))) == 0


class Thing:
    pass


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: iter(DataLoader(torch.zeros(8), 2)), "a _SingleProcessDataLoaderIter: the script"),
        (lambda: itertools.count(), "a count: the script draws from it"),
        (lambda: (n for n in range(9)), "a generator: the script draws from it"),
        (lambda: open(__file__), "a TextIOWrapper: the script draws from it"),
    ],
)
def test_what_is_drawn_from_is_named(caplog, made, named):
    def loop(steps, source):
        for attempt in steps:
            with attempt:
                next(source)

    loop(Steps(LoopVariables([], refuses=False)), made())
    (text,) = warnings(caplog)
    assert text.startswith("not protected: source (line ") and named in text
    assert "of test_loop_variables.py)" in text and "job.iterate(source)" in text
    with pytest.raises(WouldDiverge, match="TASKD_CARRIED=refuse: not protected: source"):
        loop(Steps(LoopVariables([], refuses=True)), made())
    given = made()
    loop(Steps(LoopVariables([given], refuses=True)), given)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (Thing(), "a tests.worker.test_loop_variables.Thing, which cannot be recorded"),
        (torch.zeros(1 << 19), "a tensor of 2.0 MiB, too large to copy in every step (1 MiB)"),
        ([Thing()], "a tests.worker.test_loop_variables.Thing"),
    ],
)
def test_what_cannot_be_recorded_is_named_once(caplog, value, why):
    def loop(steps, kept):
        for attempt in steps:
            with attempt:
                kept = kept if kept is None else value

    loop(Steps(LoopVariables([], refuses=False)), value)
    (text,) = warnings(caplog)
    assert text.startswith("not protected: kept (line ") and why in text
    assert "given to protect()" in text


def test_what_changes_where_a_step_is_committed_is_restored_and_named(caplog):
    def loop(steps):
        count, history, total = 0, [], 0
        for attempt in steps:
            with attempt:
                total += 1
            if attempt.committed:
                count += 1
                history.append(total)
        return count, history, total

    assert loop(Steps(LoopVariables([], refuses=False))) == (2, [1, 2], 2)
    texts = warnings(caplog)
    assert [text.partition(" (")[0] for text in texts] == [
        "not protected: count",
        "not protected: history",
    ]
    assert all("where attempt.done is true" in text for text in texts)
    with pytest.raises(WouldDiverge, match=r"count \(line .* not committed again.*; history"):
        loop(Steps(LoopVariables([], refuses=True)))


@pytest.mark.parametrize(("item", "most"), [(0.5, LONGEST), ("text", ITEMS)])
def test_what_grows_too_long_is_named(caplog, item, most):
    def loop(steps, history):
        for attempt in steps:
            with attempt:
                history.append(item)
        history += [item] * (most - len(history))
        assert variables.state_dict() == {"history": history} and not warnings(caplog)
        history.append(item)
        assert variables.state_dict() == {}
        history.append(item)  # it is named once
        assert variables.state_dict() == {}

    variables = LoopVariables([], refuses=False)
    loop(Steps(variables), [])
    (text,) = warnings(caplog)
    assert text.startswith("not protected: history (line ")
    assert f"is a list of {most + 1} items: it is not copied in every step" in text


def test_a_file_that_is_written_is_no_source(caplog, tmp_path):
    def loop(steps):
        with open(tmp_path / "log", "w") as file:
            for attempt in steps:
                with attempt:
                    print("a line", file=file)

    loop(Steps(LoopVariables([], refuses=True)))
    assert not warnings(caplog)


def test_a_loop_without_a_source_is_named(caplog):
    source = "def loop(steps):\n    total = 0\n    for _ in steps:\n        total += 1\n"
    space = {"__name__": __name__}
    exec(source, space)
    space["loop"](Steps(LoopVariables([], refuses=False)))
    (text,) = warnings(caplog)
    assert "variables that the loop carries on: there is no source of loop, of <string>" in text
    with pytest.raises(WouldDiverge, match="no source of loop"):
        space["loop"](Steps(LoopVariables([], refuses=True)))


def test_each_loop_has_variables_of_its_own(caplog):
    """Those that only a second one carries are restored in it, and named if they cannot be."""
    variables = LoopVariables([], refuses=False)

    def first():
        total = 0
        for _ in Steps(variables):
            total = total + 1
        return total

    def second(held):
        mean, late = 0.0, held
        for _ in Steps(variables):
            mean = 0.9 * mean + 1
            print(late, end="")
            late = held
        return mean

    for _ in range(2):
        assert first() == 2
        assert not warnings(caplog)
    for _ in range(2):
        assert second(threading.Lock()) == pytest.approx(1.9)
        (text,) = warnings(caplog)
        assert text.startswith("not protected: late (line ")
    with pytest.raises(WouldDiverge, match="late"):
        strict = variables = LoopVariables([], refuses=True)
        assert strict is variables and first() == 2
        second(threading.Lock())


def test_two_loops_over_calls_that_take_turns():
    """Each has its own variables again when it goes on."""
    variables = LoopVariables([], refuses=False)
    session = SimpleNamespace(variables=variables)
    loop = SimpleNamespace(
        session=session,
        cursor=SimpleNamespace(),
        recorder=None,
        look_at_variables=variables.attach,
    )
    calls = Calls(loop)
    seen = []

    def call(function):
        calls._look(function, sys._getframe(1))
        seen.append([p.name for p in variables.places if p.name in ("losses", "scores")])

    def train():
        losses = []
        for _ in range(2):
            call(train)
            losses.append(1)

    def evaluate():
        scores = []
        for _ in range(2):
            call(evaluate)
            scores.append(1)

    for _ in range(2):
        train()
        evaluate()
    assert seen == [["losses"], ["losses"], ["scores"], ["scores"]] * 2


def test_in_loops_over_calls_what_the_script_assigns_between_them_is_named(caplog):
    class Script:
        number = 0

        def __init__(self) -> None:
            self.number = 0

        def step(self):
            self.number += 1

    def loop(steps, script):
        best = 0
        for attempt in steps:
            with attempt:
                script.step()
                best = best + 1
        return best, script.number

    script = Script()
    assert loop(Steps(LoopVariables([], refuses=False), script.step), script) == (3, 2)
    (text,) = warnings(caplog)
    assert text.startswith("not protected: best (line ") and "job.call" in text


def test_what_the_function_of_a_call_reads_and_is_assigned_between_calls_is_named(caplog):
    """Its arguments are those of its step when it is repeated; what it reads itself is not."""

    class Script:
        batch = 0

        def step(self):
            return self.batch

    script = Script()

    def call(function, *args):
        LoopVariables([], refuses=False).attach(function)
        return function(*args)

    def closure():
        for n in range(2):
            batch, scale = n + 1, 2
            call(lambda x: x * batch, scale)

    def attribute():
        for n in range(2):
            script.batch = n
            call(script.step)

    def argument():
        for n in range(2):
            batch = n + 1
            call(lambda x: x, batch)

    def before():
        factor = 2
        for n in range(2):
            call(lambda x: x * factor, n)

    argument()
    before()
    assert not warnings(caplog)
    closure()
    attribute()
    texts = warnings(caplog)
    assert {t.split(" (")[0] for t in texts} == {
        "not protected: batch",
        "not protected: Script.batch",
    }
    assert all("Pass it to job.call as an argument" in t for t in texts)


def test_the_numbers_that_loops_begin_with():
    """A replacement that has others makes other calls; those that a loop assigns are its own."""

    def ranges(loop) -> str:
        variables = LoopVariables([], refuses=False)
        loop(lambda: variables.attach(None))
        return variables.ranges.removeprefix(RANGES)

    first, last, name, ratio = 3, 5, "x", 0.5

    def nested(call):
        skip = 0
        for _ in range(first - 3, 2):
            for _ in zip(range(skip + first, last), name * first, [ratio] * 9, strict=False):
                call()
            skip = 0

    def plain_while(call):
        left = last
        while left:
            left -= 1
            call()

    def listed(call):
        for _ in [n + last for n in range(first)]:
            call()

    assert ranges(nested) == "first is 3, last is 5"
    assert ranges(plain_while) == ""
    assert ranges(listed) == "first is 3, last is 5"


def test_memory_that_processes_share_is_named(caplog):
    def loop(steps, block, number):
        for attempt in steps:
            with attempt:
                block.buf[0] = number.value = 1

    block = shared_memory.SharedMemory(create=True, size=8)
    try:
        loop(Steps(LoopVariables([], refuses=False)), block, multiprocessing.Value("i", 0))
    finally:
        block.close()
        block.unlink()
    texts = warnings(caplog)
    assert {t.split(" (")[0] for t in texts} == {"not protected: block", "not protected: number"}
    assert all("memory that processes share, and is not restored" in t for t in texts)


def test_names_of_a_later_pass_are_those_of_the_first():
    variables = LoopVariables([], refuses=False)

    def passes():
        total = 0
        for _ in range(2):
            for attempt in Steps(variables):
                with attempt:
                    total += 1
                    if total > 100:
                        rare = rare + 1
            rare = 0
        return {place.name for place in variables.places}

    assert passes() == {"total", "rare"}


@pytest.mark.parametrize("made", [(1, [1.5, "x"]), {"a": torch.ones(2)}, numpy.ones(1)], ids=str)
def test_a_variable_without_a_value_before_the_first_step(made, capsys):
    """In a process that goes on, and in a replacement, which has no value for it either."""

    def loop(steps, numbers):
        for attempt in steps:
            with attempt:
                step = next(numbers)
                if step > 0:
                    print(previous)
                previous = made if step == 0 else None

    first = LoopVariables([], refuses=False)
    loop(Steps(first), itertools.count())
    assert capsys.readouterr().out == f"{made}\n" * 2

    class Replaced(Steps):
        def __iter__(self):
            self.variables.attach(None)
            self.variables.load_state_dict({"previous": made})
            yield Attempt()

    loop(Replaced(LoopVariables([], refuses=False)), itertools.count(1))
    assert capsys.readouterr().out == f"{made}\n"


@pytest.mark.parametrize(
    "made", [deque([1]), [OrderedDict(a=1)], torch.ones(1).requires_grad_(), Thing(), [1] * 30_000]
)
def test_one_that_says_too_little_of_itself_is_left_alone(caplog, made):
    """As is the loss of an inner loop that might have no pass."""

    def loop(steps, parts):
        for attempt in steps:
            with attempt:
                for _ in parts:
                    loss = made
                total = loss
            assert "loss" not in variables.state_dict()

    variables = LoopVariables([], refuses=True)
    loop(Steps(variables), (1, 2))
    assert "loss" in {place.name for place in variables.places} and not warnings(caplog)


def test_what_had_no_value_at_first_is_the_same_in_later_passes(caplog):
    """A replacement that skips the passes before has none for it either."""
    variables = LoopVariables([], refuses=True)

    def passes(parts):
        recorded = []
        for number in range(2):
            for attempt in Steps(variables):
                with attempt:
                    if number == 0:
                        window = deque(maxlen=3)
                    window.append(number)
                    for part in parts:
                        out = part
                    total = out
                recorded.append({*variables.state_dict()})
        return recorded

    assert "window" not in set().union(*passes([torch.zeros(1 << 19), torch.zeros(1)]))
    assert not warnings(caplog)


def test_a_result_of_calls_in_an_inner_loop_is_not_named(caplog):
    def loop(steps, call):
        for _ in range(2):
            for _ in range(1):
                for attempt in steps:
                    loss = call(attempt)
            print(loss)

    loop(Steps(LoopVariables([], refuses=True), function=print), lambda _: 1.0)
    assert not warnings(caplog)


def test_a_value_that_holds_itself_is_left_alone():
    def loop(steps, numbers):
        for attempt in steps:
            with attempt:
                if next(numbers) > 0:
                    print(len(node))
                node = [1]
                node.append(node)
            assert "node" not in variables.state_dict()

    given = itertools.count()
    variables = LoopVariables([given], refuses=True)
    loop(Steps(variables), given)


def test_assigning_to_a_waiting_frame_leaves_nothing_behind():
    def inner():
        assign(sys._getframe(1), {"x": 2, "captured": 3})

    def outer():
        x, captured = 1, 1
        inner()
        return x, (lambda: captured)()

    assert outer() == (2, 3)


def test_attributes_in_slots_and_dicts():
    class Slotted:
        __slots__ = ("x",)

    class Both(Slotted):
        pass

    holder = Both()
    put_attribute(holder, "x", 1)
    put_attribute(holder, "y", 2)
    assert (holder.x, holder.y) == (1, 2)
    assert (value_of_attribute(holder, "x"), value_of_attribute(holder, "y")) == (1, 2)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -0.0,
        3 + 1j,
        "text",
        b"bytes",
        torch.tensor([1.5, float("nan")]),
        torch.float16,
        numpy.float32(1.5),
        numpy.arange(6).reshape(2, 3),
        (1, [2, (3, {"a": {4}})]),
        OrderedDict(b=1, a=2),
    ],
)
def test_recorded_values_come_back(value):
    recorded = plain.decode(plain.encode(values.recordable(value)))
    assert values.is_same(value, recorded)
    assert values.is_same(stored_attributes.like(value, recorded), recorded)


def test_a_look_at_a_deep_value_ends():
    deep: list = []
    deep.append(deep)
    with pytest.raises(NotRecordable, match="nested too deeply"):
        values.recordable(deep)


# -- libraries that hold what is protected ---------------------------------------------------------


def library(kind: str, **attributes: object) -> object:
    made = type(kind, (), {"__module__": "some_library.parts"})()
    vars(made).update(attributes)
    return made


def test_numbers_of_what_holds_the_model():
    model = torch.nn.Linear(1, 1)
    state = library("State", synchronized=True, process=7)
    trainer = library("Trainer", _models=[model], state=state, step=0, name="x", descriptor=5)
    other = library("Other", step=0)
    numbers = holders.Numbers()
    numbers.search([model], [("trainer", trainer), ("other", other)])
    assert numbers.state_dict() == {}
    trainer.step, state.synchronized, other.step = 3, False, 9
    recorded = plain.decode(plain.encode(numbers.state_dict()))
    assert recorded == {"trainer": {"step": 3}, "trainer.state": {"synchronized": False}}
    trainer.step, state.synchronized, state.process = 4, True, 8
    numbers.load_state_dict(recorded)
    assert (trainer.step, state.synchronized, other.step) == (3, False, 9)
    assert state.process == 7  # had not changed by then
    # in another process, whose own numbers stay
    fresh = library("Trainer", _models=[model], state=library("State", synchronized=True), step=0)
    fresh.descriptor = 6
    numbers = holders.Numbers()
    numbers.search([model], [("trainer", fresh)])
    numbers.load_state_dict(recorded)
    assert (fresh.step, fresh.state.synchronized, fresh.descriptor) == (3, False, 6)


@pytest.mark.parametrize(
    ("present", "recorded"),
    [
        (torch.zeros(2), torch.tensor([1.0, 1 / 3], dtype=torch.float64)),
        (torch.zeros(2, dtype=torch.int64), torch.tensor([0.5, 1.5])),
        (numpy.zeros(2, "f4"), numpy.array([1.0, 1 / 3])),
        (numpy.zeros(2, int), numpy.array([0.5, 1.5])),
    ],
    ids=lambda value: str(getattr(value, "dtype", value)),
)
def test_a_value_is_not_rounded_to_the_type_that_the_variable_has_by_now(present, recorded):
    found = stored_attributes.into(present, recorded)
    assert found.dtype == recorded.dtype and found.tolist() == recorded.tolist()


def test_an_array_that_may_not_be_written_is_replaced():
    present, recorded = numpy.zeros(2), numpy.ones(2)
    present.flags.writeable = False
    assert stored_attributes.into(present, recorded).tolist() == [1, 1] and present.tolist() == [
        0,
        0,
    ]
    present.flags.writeable = True
    assert stored_attributes.into(present, recorded) is present and present.tolist() == [1, 1]


def test_what_is_to_be_done_at_a_commit_needs_a_call():
    """A loop of attempts says itself what is committed."""
    attempts = SimpleNamespace(open=True)
    calls = Calls(SimpleNamespace(recorder=None, attempts=attempts))
    assert not calls.after(print)
    calls._attempts = iter(())
    assert calls.after(print)
    attempts.open = False
    assert not calls.after(print)
