"""What a script has between two passes: which code is named, which variables are kept."""

from __future__ import annotations

import textwrap

import pytest

from taskd.worker.discovery import between

AFTER = """
def epochs(asks, n):
    for epoch in range(n):
        model.train()
        for attempt in asks():
            with attempt:
                pass
        {after}
"""
CALLED = """
def one(asks):
    for attempt in asks():
        pass
    {inner}

def epochs(asks, n):
    for epoch in range(n):
        one(asks)
        {after}
"""
TWO = """
def epochs(asks, n):
    for attempt in asks():
        pass
    {after}
    for attempt in asks():
        pass
    print("behind")
"""

ASKS = """
def asks():
    found.append(between.code(sites[-1]))
    sites.append(between.site())
    yield from ()
"""

JOB = """
class Job:
    def epochs(self, count):
        loops.append(between.loop())
        yield from range(count)

    def inside(self):
        inside.extend(loop.runs() for loop in loops)
"""


class Model:
    def train(self, *_):
        pass

    step = set_epoch = once = train


def named(tmp_path, text: str, **statements: str) -> list[tuple[int, bool]]:
    """Of a script that asks for passes, the lines that are named at each, and whether a loop is
    around them."""
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(text.format(**statements)))
    space = {"__name__": "__main__", "model": Model(), "x": Model()}
    exec(compile(file.read_text(), str(file), "exec"), space)
    taskd = {"__name__": "taskd.job", "between": between, "found": [], "sites": [None]}
    exec(ASKS, taskd)
    space["epochs"](taskd["asks"], 2)
    lines = file.read_text().splitlines()
    found = [(where.partition(":")[2], loop) for where, loop in taskd["found"] if where]
    return [(lines[int(line) - 1].strip(), loop) for line, loop in found]


@pytest.mark.parametrize(
    ("text", "statements", "first"),
    [
        (AFTER, {"after": "x.y = epoch"}, None),
        (AFTER, {"after": "pass; x.step(); x.set_epoch(epoch)"}, ()),
        (AFTER, {"after": "taskd = x; x.y = lambda: taskd.once(1)"}, None),
        (CALLED, {"inner": "return 1", "after": "pass"}, None),
        (CALLED, {"inner": "pass", "after": "print(epoch)"}, None),
        (CALLED, {"inner": "pass", "after": "x.step()"}, ()),
        (TWO, {"after": "print(1)"}, "print(1)"),
        (TWO, {"after": "x.once(print)"}, ()),
    ],
)
def test_which_code_is_named(tmp_path, text, statements, first):
    found = named(tmp_path, text, **statements)
    if first == ():
        assert not found
    elif text is TWO:
        assert found == [(first, False)]
    else:
        said = next(s for s in (statements.get("inner"), statements["after"]) if s != "pass" and s)
        assert found and all(row == (said, True) for row in found)


def test_variables_that_changed_are_put_into_the_objects_that_are_there():
    def run(replaced):
        number, text, rows, late = 1, "a", [1.0, 2.0], None
        alias = rows
        before = between.variables()
        if not replaced:
            number, rows[0], late = 2, 3.0, [4]
            return between.changed(between.variables(), before)
        between.put(replaced)
        return number, text, alias, late

    # as the script's own: this module's name is not that of a library
    values = run(None)
    assert run(values) == (2, "a", [3.0, 2.0], [4])
    (held,) = (v for name, v in values.items() if name.endswith(" run"))
    assert set(held) - {"before"} == {"number", "rows", "alias", "late"}


def test_a_variable_that_was_bound_anew_leaves_the_object_that_was_there():
    def run(replaced):
        import torch

        first = torch.zeros(2)
        held = first
        before = between.variables()
        if not replaced:
            held = held + 1
            return between.changed(between.variables(), before)
        between.put(replaced)
        return held.tolist(), first.tolist()

    assert run(run(None)) == ([1.0, 1.0], [0.0, 0.0])


@pytest.mark.parametrize(
    ("over", "found"),
    [
        ("job.epochs(2)", ""),
        ("tqdm(job.epochs(2))", ""),
        ("enumerate(job.epochs(2))", "enumerate"),
        ("zip([1, 2], job.epochs(2))", "zip"),
        ("enumerate([1, 2])", ""),
    ],
)
def test_what_would_begin_anew_around_epochs_is_found(tmp_path, over, found):
    file = tmp_path / "script.py"
    file.write_text(f"def script(job, tqdm):\n    for epoch in {over}:\n        job.inside()\n")
    space = {"__name__": "__main__"}
    exec(compile(file.read_text(), str(file), "exec"), space)
    taskd = {"__name__": "taskd.job", "between": between, "loops": [], "inside": []}
    exec(JOB, taskd)
    space["script"](taskd["Job"](), lambda inner: inner)
    if "epochs" in over:
        assert [loop.restarting for loop in taskd["loops"]] == [found]
        assert taskd["inside"] == [True, True] and not taskd["loops"][0].runs()


def test_what_is_large_or_an_object_is_left_out():
    import torch

    def run():
        small, large, thing = torch.ones(3), torch.ones(100_000), object()
        rows, gradient = [0.0] * 20_000, torch.ones(2, requires_grad=True)
        found = between.variables()
        del small, large, thing, rows, gradient
        return next(v for name, v in found.items() if name.endswith(" run"))

    assert set(run()) == {"small", "gradient"}
