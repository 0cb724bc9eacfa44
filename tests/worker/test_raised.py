"""How a rank ends by an exception: at once after its exit functions, since all others wait for its
replacement while the interpreter is taken apart."""

from __future__ import annotations

import collections
import functools
import os
import signal
import subprocess
import sys

import pytest
import torch

from taskd import raised
from taskd.worker.state import content

PROGRAM = """
import atexit, sys, threading, time

class Late:
    def __del__(self):
        print("taken apart", flush=True)

late = Late()
atexit.register(print, "registered before")
from taskd import raised
raised.offer()
atexit.register(print, "registered after")
threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
sys.stdout.write("not flushed, ")
"""


def run(end: str, tmp_path, rank: bool) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TASKD_")}
    if rank:
        environ |= {
            "TASKD_SLOT": "0",
            "TASKD_LOCAL_RANK": "0",
            "TASKD_SHARED_DIR": str(tmp_path),
        }
    command = [sys.executable, "-c", PROGRAM + end]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("rank", [True, False])
def test_an_exception_ends_a_rank_without_taking_the_interpreter_apart(tmp_path, rank):
    done = run("raise ValueError('a defect')", tmp_path, rank)
    assert done.returncode == 1 and "ValueError: a defect" in done.stderr
    taken_apart = [] if rank else ["taken apart"]
    lines = ["not flushed, thread", "registered after", "registered before", *taken_apart]
    assert done.stdout.splitlines() == lines
    assert len(list(tmp_path.glob("raised-*"))) == rank


def test_a_failing_exit_function_changes_nothing(tmp_path):
    end = "atexit.register(lambda: 1 / 0)\nraise ValueError('a defect')"
    done = run(end, tmp_path, True)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert "registered before" in done.stdout and "taken apart" not in done.stdout


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        # as an interactive console does
        ("try:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())", 0),
        ("raise KeyboardInterrupt", -2),
    ],
)
def test_other_ends_are_python_s(tmp_path, end, status):
    done = run(end, tmp_path, True)
    assert done.returncode == status, done.stderr
    assert "taken apart" in done.stdout and "registered before" in done.stdout


# -- handlers of signals, whose exceptions may arrive anywhere -------------------------------------


class Handler:
    def __call__(self, *_):
        raise RuntimeError("a worker died")

    method = __call__


class Inherits(Handler):
    pass


def ends(*_):
    raise RuntimeError("a worker died")


class Batch(collections.UserDict):
    """A signal arrives while it is read."""

    def __iter__(self):
        signal.raise_signal(signal.SIGUSR2)
        return super().__iter__()


HANDLERS = [ends, Handler().method, Handler(), Inherits(), functools.partial(ends)]


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda h: type(h).__name__)
def test_what_a_handler_raises_is_for_the_script(handler):
    """A loader's handler raises once; a loader that goes on without it waits for a dead worker."""
    before = signal.signal(signal.SIGUSR2, handler)
    try:
        with pytest.raises(RuntimeError, match="a worker died"):
            content.look([Batch(x=1.0)])
        try:
            list(Batch())
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match="a worker died"):
                raised.heed(error)
        try:
            torch.zeros(2).view(3)
        except RuntimeError as error:
            raised.heed(error)
    finally:
        signal.signal(signal.SIGUSR2, before)
