"""How the framework's handlers are called."""

from __future__ import annotations

import functools

import pytest

from taskd.adaptor.mindio import handlers
from taskd.adaptor.mindio.handlers import Handlers, fitting

ARGS, CTX = ["model", "optimizer"], object()


def calling(name: str, *arguments, ctx=CTX, args=ARGS):
    """What the handler `name` gets."""
    got = []
    all_of_them = Handlers()
    all_of_them.args = args
    all_of_them.register(name, lambda *given: got.append(given), ctx)
    all_of_them.call(name, *arguments)
    (given,) = got
    return given


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (handlers.STOP, ()),
        (handlers.CLEAN, (True,)),
        (handlers.REBUILD, ([1, 3],)),
        (handlers.REPAIR, (7, False, [1], {"src": [0], "dst": [1]})),
        (handlers.ROLLBACK, (7,)),
        (handlers.SAVE, (7, [{"type": 0, "ranks": [0]}])),
    ],
)
def test_most_get_the_step_arguments_and_their_context_at_the_end(name, arguments):
    given = calling(name, *arguments)
    assert given == (*arguments, ARGS, CTX)
    assert given[-2] is ARGS, "handlers may change them"
    assert calling(name, *arguments, ctx=None, args=None) == (*arguments, None, None)


def test_rename_gets_the_context_if_there_is_one_else_the_step_arguments():
    assert calling(handlers.RENAME, 7) == (7, CTX)
    assert calling(handlers.RENAME, 7, ctx=None) == (7, ARGS)
    assert calling(handlers.RENAME, 7, ctx=0) == (7, 0), "a false context is one"


def test_those_of_elastic_training_get_what_is_done_at_the_end_and_no_context():
    for name in handlers.ELASTIC:
        assert calling(name, [0, 1], "DP") == ([0, 1], ARGS, "DP")


def test_exit_gets_its_context_alone_and_stream_sync_nothing():
    assert calling(handlers.EXIT) == (CTX,)
    assert calling(handlers.SYNC) == ()


def test_each_handler_has_its_own_context_and_the_last_registration_counts():
    found, calls = Handlers(), []
    for ctx in ("first", "second"):
        found.register(handlers.STOP, lambda args, ctx: calls.append(("stop", ctx)), ctx)
    found.register(handlers.ROLLBACK, lambda step, args, ctx: calls.append((step, ctx)), "third")
    found.call(handlers.STOP)
    found.call(handlers.ROLLBACK, 4)
    assert calls == [("stop", "second"), (4, "third")]


def test_the_step_arguments_are_those_of_the_moment():
    found, calls = Handlers(), []
    found.register(handlers.STOP, lambda args, ctx: calls.append(args), None)
    for args in (None, 1, 2):
        found.args = args
        found.call(handlers.STOP)
    assert calls == [None, 1, 2]


def test_results_and_exceptions_pass():
    found = Handlers()
    assert found.call(handlers.CLEAN, True) is None and handlers.CLEAN not in found
    found.register(handlers.CLEAN, lambda *given: 2, None)
    assert found.call(handlers.CLEAN, True) == 2 and handlers.CLEAN in found

    def fail(*given):
        raise KeyError("its own")

    found.register(handlers.CLEAN, fail, None)
    with pytest.raises(KeyError, match="its own"):
        found.call(handlers.CLEAN, True)


@pytest.mark.parametrize("name", handlers.NAMES)
@pytest.mark.parametrize("function", [None, 3, "stop"])
def test_what_cannot_be_called_is_refused_with_the_name(name, function):
    found = Handlers()
    with pytest.raises(TypeError, match=f"tft_register_{name}_handler: func is"):
        found.register(name, function, None)
    assert name not in found


def test_a_type_error_inside_of_a_handler_is_its_own():
    """Trying with fewer arguments until it works would call a handler twice."""
    calls = []

    def handler(step, args, ctx):
        calls.append(step)
        raise TypeError("missing 1 required positional argument")

    found = Handlers()
    found.register(handlers.ROLLBACK, handler, None)
    with pytest.raises(TypeError):
        found.call(handlers.ROLLBACK, 3)
    assert calls == [3]


# -- as many arguments as it takes -----------------------------------------------------------------


class Framework:
    def bound(self, step, args):
        return step, args

    @classmethod
    def of_class(cls, step):
        return (step,)

    @staticmethod
    def static(*given):
        return given

    def __call__(self, step):
        return (step,)


def wrapped(step, args):
    return step, args


@functools.wraps(wrapped)
def wrapper(*given):
    return wrapped(*given)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: (), ()),
        (lambda step: (step,), (1,)),
        (lambda step, args: (step, args), (1, 2)),
        (lambda step, args, ctx: (step, args, ctx), (1, 2, 3)),
        (lambda step, args, ctx, more=4: (step, args, ctx, more), (1, 2, 3, 4)),
        (lambda *given: given, (1, 2, 3)),
        (lambda step, *given: (step, given), (1, (2, 3))),
        (lambda step, args=None, ctx=None: (step, args, ctx), (1, 2, 3)),
        (lambda step, *, ctx="own": (step, ctx), (1, "own")),
        (lambda step, **more: (step, more), (1, {})),
        (lambda step, /, args: (step, args), (1, 2)),
        (Framework().bound, (1, 2)),
        (Framework.of_class, (1,)),
        (Framework.static, (1, 2, 3)),
        (Framework(), (1,)),
        (functools.partial(lambda a, b, c: (a, b, c), 0), (0, 1, 2)),
        (functools.partial(lambda a, ctx: (a, ctx), ctx="own"), (1, "own")),
        (wrapper, (1, 2)),
        (max, 3),  # without a signature
    ],
)
def test_fitting(function, expected):
    assert fitting(function, (1, 2, 3)) == expected


def test_a_function_written_in_c_with_a_signature():
    assert fitting(len, ([1, 2], 5, 6)) == 2


def test_too_few_is_the_function_s_error():
    with pytest.raises(TypeError, match="ctx"):
        fitting(lambda step, ctx: None, (1,))
