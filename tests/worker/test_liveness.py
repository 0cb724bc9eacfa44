"""Which variables a loop carries, from its source. The loops here run, one pass or a few."""

from __future__ import annotations

import dataclasses
import linecache
import random
import sys
import textwrap
import types

import pytest

from taskd.worker.discovery import syntax
from taskd.worker.discovery.liveness import Analysis
from taskd.worker.discovery.syntax import Unknown
from taskd.worker.discovery.variables import Scope


class Attempt:
    committed = done = True

    def __enter__(self):
        return 0

    def __exit__(self, *_):
        return True


class Steps:
    """Looks at the loop that draws from it, before its first pass."""

    def __init__(self, passes: int = 1) -> None:
        self.left, self.carried, self.touched, self.once = passes, None, None, None
        self.lines: dict[str, int] = {}

    def __iter__(self):
        while self.left:
            if self.carried is None:
                self.look(sys._getframe(1))
            self.left -= 1
            yield Attempt()

    def look(self, frame: types.FrameType) -> None:
        module = frame.f_globals["__name__"]
        analysis = Analysis(
            lambda space: space.get("__name__") == module,
            lambda value: type(value).__module__ == module and not isinstance(value, (Steps, type)),
        )
        named = {} if frame.f_code.co_flags & 1 else frame.f_locals
        names = dict(frame.f_locals)
        scope = Scope(frame.f_code, named, frame.f_globals, 0, names, in_loop=True)
        carried, touched = analysis.carried(scope, frame.f_lineno, True)
        first = frame.f_code.co_firstlineno
        names = {key: analysis.names[key].removeprefix(f"{module}.") for key in touched | carried}
        self.carried = {names[key] for key in carried}
        self.touched = {names[key] for key in touched}
        self.once = {names[key] for key in analysis.once if key in names}
        self.lines = {names[key]: analysis.lines[key] - first for key in carried}


def run(source: str, space: dict[str, object]) -> None:
    """As from a file; see linecache."""
    name = f"script {hash(source)}"
    linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
    exec(compile(source, name, "exec"), space)


def carried(source: str, passes: int = 1, **variables) -> set[str]:
    """Of the loop in a function, and the same of the loop in a module."""
    found = []
    body = textwrap.dedent(source)
    names = "".join(f"    {name} = {name}_\n" for name in variables)
    function = f"def loop(steps, {', '.join(f'{n}_' for n in variables)}):\n" + names
    for text, call in ((function + textwrap.indent(body, "    "), True), (body, False)):
        steps = Steps(passes)
        space = {"__name__": "script", "steps": steps, **variables}
        run(text, space)
        if call:
            space["loop"](steps, *variables.values())
        found.append(steps.carried)
    assert found[0] == found[1]
    return found[0]


def test_what_is_read_before_it_is_assigned():
    source = """
        for attempt in steps:
            with attempt as step:
                loss = batch * 2
                batch = step
                mean = 0.9 * mean + loss
                if loss < best:
                    best = loss
                total += 1
            if attempt.committed:
                last = loss
    """
    names = {"batch", "mean", "best", "total"}
    assert carried(source, batch=1, mean=0.0, best=9, total=0, loss=0, last=0) == names


def played(script: str, *arguments: object, passes: int = 1, **space: object) -> Steps:
    """What was seen of the function `loop` of a script."""
    steps = Steps(passes)
    space |= {"__name__": __name__, "steps": steps, "Meter": Meter}
    run(script, space)
    space["loop"](steps, *arguments)
    return steps


GIVEN = [
    "update(meter)",
    "update(meter, step)",
    "update(meter, step + 1)",
    "update(what=meter, by=step)",
    "update(meter, by=step)",
    "update(meter, min(step, 3))",
    "update(meter, min(step + 1, 3)) or update(None)",
    "meter.add(meter)",
    "call(update, meter)",
    "step or call(update, meter)",
    "call(meter.grow)",
    "call(update, what=meter)",
]
NOT_GIVEN = ["len((update, meter))", "update(Meter())"]


@pytest.mark.parametrize("call", [*GIVEN, *NOT_GIVEN])
def test_what_a_function_changes_in_its_arguments(call):
    script = f"""
def update(what, by=1):
    if what is not None:
        what.value += by

def call(function, what=None):
    return function(what)

def loop(steps, meter):
    for attempt in steps:
        with attempt as step:
            {call}
"""
    meter = Meter()
    meter.other = Meter()
    assert played(script, meter).carried == ({"meter.value"} if call in GIVEN else set())
    inner = played(script.replace(call, "update(meter.other)"), meter)
    assert inner.carried == {"meter.other.value"}


def test_a_parameter_that_is_assigned_anew_says_nothing():
    script = """
def fresh(meter):
    meter = Meter()
    meter.value = 0
    return meter

def transfer(source, target):
    if target is not None:
        target.value += 1

def loop(steps, meter, other):
    for attempt in steps:
        with attempt as step:
            probe = fresh(meter)
            meter.value = min(meter.value, step)
            transfer(other, None)
            transfer(None, other)
"""
    assert played(script, Meter(), Meter()).carried == {"meter.value", "other.value"}


ONCE = [
    ("if attempt.committed:\n    total += 1\n    print(best)", {"total"}),
    ("if attempt.committed and step % 2 == 0 and best:\n    total = total + best", {"total"}),
    ("if step and not attempt.committed:\n    continue\ntotal += 1", set()),
    ("if not attempt.committed:\n    continue\ntotal += 1\nbest = min(best, 3)", {"total", "best"}),
    ("if attempt.committed:\n    history.append(best)\n    table['n'] += 1", {"history", "table"}),
    ("if attempt.committed:\n    table[step] = history[-1:]", {"table"}),
    ("if attempt.committed:\n    print(history[0], len(table), table.get('n'))", set()),
    ("if attempt.committed:\n    add(history)\ntotal += 1", {"meter.value"}),
    ("if attempt.done:\n    total += 1\nif attempt.committed:\n    last = total", set()),
    ("total += 1\nif attempt.committed:\n    total += 1", {"total"}),
    ("if attempt.committed:\n    print(step - total)\n    total = step", set()),
    ("if attempt.committed and 0 < best < 9:\n    print(best)", set()),
    (
        "if attempt.committed:\n    history[0] += best\n    print(table, history.append(1))",
        {"history"},
    ),
]


@pytest.mark.parametrize(("between", "names"), ONCE, ids=[between for between, _ in ONCE])
def test_what_changes_only_where_a_step_is_committed(between, names):
    inside = "total, best, held = total + 0, best + 0, (history, table)"
    body = f"for attempt in steps:\n    with attempt as step:\n        {inside}\n"
    body += textwrap.indent(between, "    ")
    script = """
def add(what):
    meter.value += len(what)

def loop(steps, total, best, history, table):
"""
    script += textwrap.indent(body, "    ")
    space = {"meter": Meter(), "print": lambda *_: None}
    assert played(script, 1, 1, [1], {"n": 0}, passes=3, **space).once == names


class Meter:
    def __init__(self):
        self.value = 0

    def add(self, other):
        other.value += 1

    def grow(self, _):
        self.value += 1


def test_what_each_step_assigns_first_is_not_carried():
    source = """
        for attempt in steps:
            with attempt as step:
                x, (y, *z) = step, (1, 2)
                loss = x + y
                for i in range(3):
                    part = i
                    loss += part
                squares = [x * x for x in range(3)]
                table = {x: y for x, y in enumerate(z)}
                while loss > 100:
                    loss -= 1
                try:
                    value = loss / 0
                except ZeroDivisionError as error:
                    value = str(error)
                finally:
                    done = value
            if attempt.committed:
                print(end="" if loss is done else "")
    """
    names = ("x", "y", "z", "loss", "i", "part", "squares", "value", "done")
    assert carried(source, passes=3, **dict.fromkeys(names, 0)) == set()


@pytest.mark.parametrize(
    "body",
    [
        "if a: continue\nx = 1",  # the rest of the pass is left out
        "try:\n    x = a.b\nexcept AttributeError:\n    x = x + 1",
        "with Attempt():\n    use = x\nx = 2",
        "y = [x for _ in range(2)]\nx = 3",
        "f = lambda: x\nx = 3",
        "while a:\n    x = x + 1\n    break\nelse:\n    x = x + 1",
        "if a:\n    del x\nelse:\n    x = 2",
        "for i in range(x):\n    x = 4",
        "x = x if a else 1",
        "y = f'{x}'\nx = 1",
        "match x:\n    case 1: x = 2\n    case _: x = 3",
        "assert x is not None\nx = 1",
        "try:\n    a.b\nexcept AttributeError:\n    print(x, end='')\nx = 1",
        "try:\n    a.b\nexcept AttributeError as x:\n    pass",  # and then it is deleted
        "try:\n    if a: continue\n    x = 1\nfinally:\n    use = x",
        "for i in range(2):\n    if a: break\nelse:\n    use = x\nx = 1",
        "while (x := x + 1) < 3: pass",
        "use = [x for _ in range(2) if (x := 1)] if a else x\nx = 1",
        "match a:\n    case {'x': x}: pass\n    case 0 if x: pass",
        "class Use:\n    y = x\nx = 1",
        "def use(y=x): pass\nx = 1",
        "def use():\n    return [x]\nx = 1",
        "x: int = x + 1",
        "use, *x = [x, x]",
        "import sys as use\nx = use.intern(str(x))",
        "a or (x := x)",
        "print(end=''), (lambda y: y + x)(1)\nx = 2",
    ],
)
def test_ways_to_carry(body):
    source = "for attempt in steps:\n    print(x, end='')\n" + textwrap.indent(body, "    ")
    assert "x" in carried(source, x=1, a=0, Attempt=Attempt)
    if "as x" in body:
        return
    before = "for attempt in steps:\n    x = 0\n" + textwrap.indent(body, "    ")
    assert "x" not in carried(before, x=1, a=0, Attempt=Attempt)


def test_names_of_other_scopes_are_others():
    source = """
        for attempt in steps:
            with attempt as step:
                class Inner:
                    x = step
                    def method(self):
                        x = 1
                        return x
                def function(x, *y, **z):
                    y = z
                    return x, y
                total = [(x, y) for x, y in zip([step], [step])], lambda x: x
                use = Inner, function
    """
    names = dict.fromkeys(("x", "y", "z", "total", "use", "step", "Inner", "function"), 0)
    assert carried(source, **names) == set()


def test_a_loop_that_is_over_or_has_not_begun_does_not_count():
    """The head of a `for` is the line of what it goes through and of each of its passes."""

    def loop(look):
        total = 0
        for _ in look():
            total = total + 1

    for begins in (False, True):
        seen = set()

        def look(begins=begins, seen=seen):
            frame = sys._getframe(1)
            analysis = Analysis(lambda space: True, lambda value: False)
            analysis.loop = __file__, 1  # one inside, which has been looked at
            scope = Scope(frame.f_code, {}, frame.f_globals, 0, dict(frame.f_locals))
            seen |= {analysis.names[k] for k in analysis.carried(scope, frame.f_lineno, begins)[0]}
            return []

        loop(look)
        assert seen == ({"total"} if begins else set())


def test_passes_that_are_asked_for_by_anything():
    """By map(), say, where the attempt begins in a function that has no loop."""
    seen: set[str] = set()

    def one(_):
        frame = sys._getframe(1)
        analysis = Analysis(lambda space: True, lambda value: False)
        scope = Scope(frame.f_code, {}, frame.f_globals, 0, dict(frame.f_locals), in_loop=True)
        seen.update(analysis.names[k] for k in analysis.carried(scope, frame.f_lineno, False)[0])

    best = 0
    for _ in map(one, [1, 2]):
        best = best + 1
    assert seen == {"best"}


def test_a_property_is_asked_where_its_value_is_used():
    class Script:
        def __init__(self):
            self.rows = []

        @property
        def present(self):
            return self.rows

    steps = Steps()

    def loop(script):
        for attempt in steps:
            with attempt:
                script.present.append(1)
                script.rows = [3]

    loop(Script())
    assert steps.carried == {"script.rows"}


def test_of_two_lambdas_in_a_line_either_may_be_meant():
    script = """
up, down = (lambda: meter.value + 1), (lambda: meter.value - 1)

def loop(steps, best):
    for attempt in steps:
        with attempt as step:
            best = best + up()
            meter.value = best
"""
    assert played(script, 0, meter=Meter()).carried == {"best", "meter.value"}


SOURCE = """def step(x):
    return x.one

def two():
    return lambda a: 1, lambda b: 2, lambda b: 3
"""


def test_a_definition_is_found_in_its_source():
    space: dict = {"__name__": "script"}
    run(SOURCE, space)
    assert syntax.of(space["step"].__code__, space).name == "step"
    one, two, _ = (function.__code__ for function in space["two"]())
    assert syntax.of(one, space).args.args[0].arg == "a"
    with pytest.raises(Unknown, match="line 5 of script .* does not say which of 2 is <lambda>"):
        syntax.of(two, space)


@pytest.mark.parametrize("edited", ["\n" + SOURCE, SOURCE.replace("x):", "x, y):")])
def test_a_source_of_something_else_is_not_that_of_the_code(edited):
    space: dict = {"__name__": "script"}
    run(SOURCE.replace("1", "2"), space)
    code = space["step"].__code__
    file = code.co_filename
    linecache.cache[file] = len(edited), None, edited.splitlines(keepends=True), file
    syntax.forget()
    with pytest.raises(Unknown, match="line 1 of .* does not say which of 0 is step"):
        syntax.of(code, space)


def test_code_without_a_source_is_said():
    space: dict = {}
    exec("def step(x):\n    return x", space)
    with pytest.raises(Unknown, match="there is no source of step, of <string>"):
        syntax.of(space["step"].__code__, space)


def test_functions_without_a_source_are_a_librarys():
    steps = Steps()

    @dataclasses.dataclass
    class Row:
        value: int

    def loop():
        total = 0
        for attempt in steps:
            with attempt:
                total = total + (Row(1) == Row(2))
        return total

    loop()
    assert steps.carried == {"total"}


def test_only_the_loop_itself_counts():
    steps = Steps(2)

    def loop():
        count = 0
        for _ in range(3):
            count = count + 1
        last = 0
        for attempt in steps:
            with attempt:
                count = 1
                last = count
        return last + count

    loop()
    assert steps.carried == set()


def test_loops_around_the_loop():
    source = """
        for epoch in range(2):
            total = 0
            for attempt in steps:
                total = total + 1
            if total > best:
                best = total
    """
    assert carried(source, best=0, total=0) == {"total", "best"}


def test_a_loop_that_asks_by_itself():
    source = """
        iterator = iter(steps)
        while True:
            attempt = next(iterator, None)
            if attempt is None:
                break
            with attempt:
                count += 1
    """
    assert carried(source, count=0) == {"count"}


def test_functions_methods_and_closures():
    steps = Steps()

    class Script:
        def __init__(self) -> None:
            self.number = self.mean = self.loss = self.unused = 0

        def forward(self, x):
            self.loss = x + self.number

        def log(self):
            return self.loss + self.unused

        def update(self):
            self.number += 1
            self.mean = self.mean + self.loss

    def loop(script):
        calls, seen, limit = 0, 0, 3

        def count():
            nonlocal calls
            calls += 1
            return limit

        def reset():
            nonlocal seen
            seen = 0

        for attempt in steps:
            with attempt as step:
                reset()
                script.forward(step)
                script.log()
                script.update()
                count()
                seen = seen + 1
        return calls, seen

    loop(Script())
    assert steps.carried >= {"script.number", "script.mean", "calls"}
    assert not steps.carried & {"script.loss", "script.unused", "limit"}


def test_an_attribute_that_a_call_reads_before_the_function_assigns_it():
    steps = Steps()

    class Script:
        state = None

        def __init__(self) -> None:
            self.state = 0

        def put(self, state):
            self.state = state

        def run(self):
            for attempt in steps:
                with attempt:
                    self.put(self.state)

    Script().run()
    assert steps.carried == {"self.state"}


def test_functions_that_call_each_other_end():
    steps = Steps()
    space = {"__name__": __name__, "steps": steps}
    source = """
        count = 0
        def one(n):
            global count
            count += 1
            return other(n - 1) if n else 0
        def other(n):
            return one(n - 1) if n else 0
        for attempt in steps:
            with attempt:
                one(3)
    """
    run(textwrap.dedent(source), space)
    assert steps.carried == {"count"}


def test_the_line_is_that_of_the_assignment_in_the_loop():
    steps = Steps()

    def loop():
        best = 9
        for attempt in steps:
            with attempt as step:
                print(best, end="")
                best = step

    loop()
    assert steps.lines == {"best": 5}


# -- against brute force ---------------------------------------------------------------------------

NAMES = "abcd"


class Program:
    """A random loop body. As source, and as a tree whose ways are followed one by one."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tree = self.block(3)

    def block(self, depth: int) -> list:
        return [self.statement(depth) for _ in range(self.random.randint(1, 3))]

    def statement(self, depth: int):
        kind = self.random.choice(
            ["use", "set", "add", "if", "else", "for", "with", "continue", "comprehension"]
            if depth
            else ["use", "set", "add"]
        )
        name = self.random.choice(NAMES)
        if kind in ("use", "set", "add", "continue", "comprehension"):
            return (kind, name)
        if kind == "else":
            return (kind, self.block(depth - 1), self.block(depth - 1))
        return (kind, self.block(depth - 1))

    def source(self, block: list | None = None, indent: str = "        ") -> str:
        lines = []
        for kind, *rest in self.tree if block is None else block:
            if kind == "use":
                lines.append(f"use({rest[0]})")
            elif kind == "set":
                lines.append(f"{rest[0]} = flip()")
            elif kind == "add":
                lines.append(f"{rest[0]} += 1")
            elif kind == "comprehension":
                lines.append(f"use([{rest[0]} for {rest[0]} in range(2)])")
            elif kind == "continue":
                lines += ["if flip():", "    continue"]
            else:
                head = {"if": "if flip():", "else": "if flip():", "with": "with Attempt():"}
                lines.append(head.get(kind, "for _ in range(flip()):"))
                lines.append(self.source(rest[0], "    "))
                if kind == "else":
                    lines += ["else:", self.source(rest[1], "    ")]
        return textwrap.indent("\n".join(lines), indent)

    def carried(self) -> set[str]:
        exposed: set[str] = set()
        written: set[str] = set()
        self.follow(self.tree, {frozenset()}, exposed, written, [])
        return exposed & written

    def follow(self, block, states, exposed, written, left):
        """The sets of assigned names after the block; every way through it is taken."""
        for kind, *rest in block:
            if kind in ("use", "add"):
                exposed |= {rest[0] for s in states if rest[0] not in s}
            if kind in ("set", "add"):
                written.add(rest[0])
                states = {s | {rest[0]} for s in states}
            elif kind == "continue":
                # inside a `for` it continues that one
                if left:
                    left[-1].update(states)
            elif kind == "with":
                states = self.follow(rest[0], states, exposed, written, left)
            elif kind == "if":
                states = states | self.follow(rest[0], states, exposed, written, left)
            elif kind == "else":
                one, other = (self.follow(b, states, exposed, written, left) for b in rest)
                states = one | other
            elif kind == "for":
                while True:
                    ends: set = set()
                    after = self.follow(rest[0], states, exposed, written, [*left, ends])
                    if after | ends <= states:
                        break
                    states = states | after | ends
        return states


@pytest.mark.parametrize("seed", range(300))
def test_random_loops(seed):
    program = Program(seed)
    flips = random.Random(seed)
    steps = Steps(2)
    names = ", ".join(NAMES)
    source = (
        f"def loop():\n    {' = '.join(NAMES)} = 0\n    for attempt in steps:\n{program.source()}\n"
        f"    return {names}\n"
    )
    space = {
        "__name__": "script",
        "steps": steps,
        "use": lambda value: value,
        "flip": lambda: flips.randint(0, 1),
        "Attempt": Attempt,
    }
    run(source, space)
    space["loop"]()
    assert steps.carried == program.carried(), source
