"""Signals to `taskd run` until torch's launcher handles them: they end it at once, as there is
nothing to clean up yet. Used before anything that takes time is imported.

The kernel drops a signal that PID 1 has no handler for, and a container's first process may learn
only once that it has to end. Python runs a handler between two instructions, which a rendezvous may
take minutes to reach, so that a thread ends the process.
"""

from __future__ import annotations

import os
import signal
from types import FrameType


def listen() -> None:
    if os.getpid() == 1:
        _be_pid_one()
    elif signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # a KeyboardInterrupt is lost if it hits a callback from C code, as during `import torch`
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _be_pid_one() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)
    import threading

    heard, told = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(told, False)
    # adaptor/stopping.py closes it when it installs its own handlers
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    threading.Thread(target=_wait, args=(heard,), name="taskd-first-signals", daemon=True).start()


def _end(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)


def _wait(heard: int) -> None:
    if numbers := os.read(heard, 1):
        _end(numbers[0], None)
    os.close(heard)
