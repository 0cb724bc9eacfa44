"""Faults on purpose: TEST_FAULTS is a list "rank:step:point:kind[:times]", joined by commas.
Each happens `times` times (1) per job. A test can ask for one more while the job runs: a file
"asked-RANK-POINT" with the kind in it."""

import collections
import ctypes
import itertools
import math
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import MappingProxyType


class Injector:
    """`at(point, step)` is called by the training script; what is due there happens. Who has struck
    is kept in files, so that a replacement does not strike again."""

    def __init__(self, out: Path, rank: int) -> None:
        self._out, self._rank, self._step = out, rank, -1
        due: dict[tuple[int, str], tuple[str, int]] = {}
        for text in filter(None, os.environ.get("TEST_FAULTS", "").split(",")):
            who, step, point, kind, *times = text.split(":")
            if int(who) == rank:
                due[int(step), point] = (kind, int(times[0]) if times else 1)
        # read-only: what a loop may change is restored, also by a job that goes on from a dump
        self._due = MappingProxyType(due)

    def at(self, point: str, step: int) -> None:
        if point == "begin":
            self._step = step
        found = self._due.get((step, point))
        if found is not None and self._first(f"{step}-{point}", found[1]):
            if found[0] in ("nap", "work"):
                self._dawdle(step, found[0])
            elif found[0] == "corrupt":
                self._corrupt()
            else:
                strike(found[0])

    def _dawdle(self, step: int, kind: str) -> None:
        """Until the test has seen enough, and says so with a file."""
        while not (self._out / f"enough-{step}").exists():
            time.sleep(0.01) if kind == "nap" else compute(0.05)

    def _corrupt(self) -> None:
        """All parameters, as memory does that fails without a word: torch is not told that they
        have changed."""
        for parameter in self._net.parameters():
            parameter.detach().numpy().fill(math.nan)

    def asked(self, point: str) -> str:
        """What the test asks for at this point, "" for nothing; once."""
        order = self._out / f"asked-{self._rank}-{point}"
        if not order.exists():
            return ""
        kind = order.read_text()
        order.rename(
            self._out / f"struck-{self._rank}-{point}-asked-{self._step}-{time.monotonic_ns()}"
        )
        return kind

    def hook(self, net, optimizer) -> None:
        """Points inside the backward and inside the optimizer."""
        self._net = net
        middle = next(p for i, p in enumerate(net.parameters()) if i == 4)
        middle.register_hook(lambda gradient: self.at("backward", self._step))
        optimizer.register_step_pre_hook(lambda *_: self._in_update())

    def _in_update(self) -> None:
        self.at("before-update", self._step)
        if (self._step, "update") in self._due:
            # struck from another thread, somewhere inside the update that begins now
            kind, times = self._due[self._step, "update"]
            if self._first(f"{self._step}-update", times):
                threading.Thread(target=lambda: (time.sleep(0.0005), strike(kind))).start()

    def _first(self, name: str, times: int) -> bool:
        for number in range(times):
            try:
                (self._out / f"struck-{self._rank}-{name}-{number}").touch(exist_ok=False)
                return True
            except FileExistsError:
                continue
        return False


def strike(kind: str) -> None:
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)  # the signal is on its way: the next line must not run
    elif kind.startswith("late-"):  # once the others are in the next collective
        time.sleep(1.0)
        strike(kind.removeprefix("late-"))
    elif kind == "segv":
        ctypes.string_at(0xBAD0)
    elif kind == "abort":
        os.abort()
    elif kind.startswith("_exit"):
        os._exit(int(kind[5:]))
    elif kind.startswith("exit"):
        sys.exit(int(kind[4:]))
    elif kind == "raise":
        raise ValueError("a fault on purpose")
    elif kind.startswith("xpu"):
        raise RuntimeError(kind.replace("-", " "))  # checked.py has told taskd what these mean
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind.startswith("nap"):
        time.sleep(float(kind[3:]))
    elif kind in HANGS:
        HANGS[kind]()
    elif kind == "cut":
        from taskd.cython_api import sockets

        sockets.cut()
    else:
        raise AssertionError(f"unknown fault {kind!r}")


def compute(seconds: float) -> None:
    """Work, with the interpreter's lock let go most of the time, as training is."""
    import torch

    end, square = time.monotonic() + seconds, torch.ones(256, 256)
    while time.monotonic() < end:
        square @ square


# -- what never ends; the names are looked for in the stacks that an agent logs --------------------


def loop_in_python() -> None:
    while True:
        pass


def loop_with_the_lock() -> None:
    """In C, without an end, and the interpreter's lock is never let go."""
    collections.deque(itertools.repeat(None), maxlen=0)


def deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_data() -> None:
    os.read(os.pipe()[0], 1)


HANGS = {f.__name__: f for f in (loop_in_python, loop_with_the_lock, deadlock, wait_for_data)}
