"""Handles signals to the launcher, so that one ends it cleanly at any moment.

torch raises SignalException wherever its main thread is. Between starting a process and recording
it, that would leave it running; during clean-up, a second signal would interrupt the clean-up. So a
signal is held until what is being started is recorded, and ignored while the launcher cleans up,
except that a repeated Ctrl-C kills the ranks. SIGKILL needs none of this.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import torch.distributed.elastic.multiprocessing.api as api
from torch.distributed.elastic.multiprocessing.api import SignalException

# torch's, with its default
VARIABLE, SIGNALS = "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
# seconds; what sends a signal to the launcher and to its process group, as `timeout` does, sends
# two within microseconds, and a person's second Ctrl-C comes after 0.15
ONE = 0.1
SUSPENDED = (
    b"taskd: Ctrl-Z is ignored: the ranks would train on without their launcher, which the manager"
    b" takes for lost after 10 s. `taskd pause` stops the ranks between two steps, `taskd continue`"
    b" lets them go on; to have the terminal back, start the job with & or nohup\n"
)

_starting = False
_leaving = False
_kept: list[signal.Signals] = []
_asked = 0.0  # when the launcher was asked to leave
_hurry: Callable[[], None] | None = None
_saves: Callable[[signal.Signals], bool] | None = None


def install() -> None:
    """Make torch's launcher handle signals with our handler. Idempotent."""
    # PContext.start looks it up there
    api._terminate_process_handler = _signaled  # type: ignore[assignment]


def begin(
    hurry: Callable[[], None],
    saves: Callable[[signal.Signals], bool],
    preemption: signal.Signals | None,
) -> None:
    """Reset: a launcher begins its work. `hurry`: kills its ranks, which have been asked to end;
    called in the main thread, wherever that is. `saves`: whether the job saves its state for a
    signal, so that the launcher goes on until the job has ended; it does so for `preemption`
    alone."""
    global _starting, _leaving, _hurry, _saves
    _starting = _leaving = False
    _hurry, _saves = hurry, saves
    _kept.clear()
    # An ignored signal stays ignored (nohup). The ranks ignore it too: passed on to them, it would
    # be waited for in vain.
    names = os.environ.get(VARIABLE, SIGNALS).split(",")
    if preemption is not None and preemption.name not in names:
        names.append(preemption.name)
    heard = [name for name in names if not _ignored(getattr(signal, name.strip(), None))]
    os.environ[VARIABLE] = ",".join(heard)


def starting() -> None:
    """Hold signals until `started`: processes and their resources are about to be made."""
    global _starting
    _starting = True
    _listen()


def started() -> None:
    """Stop holding signals: what was made is recorded. Acts on one held meanwhile."""
    global _starting
    _starting = False
    if _kept:
        _leave(_kept[0])


def leaving() -> None:
    """Ignore signals: the launcher cleans up."""
    global _leaving
    _leaving = True
    _listen()


def left() -> None:
    """Handle signals again: the clean-up is done."""
    global _leaving, _hurry
    _leaving, _hurry = False, None


def _signaled(number: int, frame: FrameType | None) -> None:
    if _leaving:
        if number == signal.SIGINT and _hurry is not None and time.monotonic() - _asked > ONE:
            _hurry()
    elif _saves is not None and _saves(signal.Signals(number)):
        return
    elif _starting:
        _kept.append(signal.Signals(number))
    else:
        _leave(signal.Signals(number))


def _suspended(number: int, frame: FrameType | None) -> None:
    os.write(2, SUSPENDED)


def _leave(number: signal.Signals) -> None:
    """A signal asks the launcher to leave: its ranks get the same signal, and it ends."""
    global _leaving, _asked
    _leaving, _asked = True, time.monotonic()
    _kept.clear()
    raise SignalException(f"Process {os.getpid()} got signal: {number.name}", sigval=number)


def _ignored(number: object) -> bool:
    return isinstance(number, signal.Signals) and signal.getsignal(number) is signal.SIG_IGN


def _listen() -> None:
    """Install the handler for the signals that torch handles once it starts its processes."""
    if threading.current_thread() is not threading.main_thread():
        return
    for name in os.environ.get(VARIABLE, SIGNALS).split(","):
        number = getattr(signal, name.strip(), None)
        if isinstance(number, signal.Signals) and not _ignored(number):
            signal.signal(number, _signaled)
    if signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL:
        signal.signal(signal.SIGTSTP, _suspended)
    # what ends a launcher that is PID 1 until here (cli/first_signals.py)
    if (early := signal.set_wakeup_fd(-1)) >= 0:
        os.close(early)
