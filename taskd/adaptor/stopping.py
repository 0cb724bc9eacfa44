"""Handles signals to the launcher, so that one ends it cleanly at any moment.

torch raises SignalException wherever its main thread is. Between starting a process and recording
it, that would leave it running; during clean-up, a second signal would interrupt the clean-up. So a
signal is held until what is being started is recorded, and ignored while the launcher cleans up.
SIGKILL needs none of this.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

import torch.distributed.elastic.multiprocessing.api as api
from torch.distributed.elastic.multiprocessing.api import SignalException

_starting = False
_leaving = False
_kept: list[signal.Signals] = []
# whether the job saves its state for a signal, see Supervisor.asked_to_leave
_saves: Callable[[signal.Signals], bool] | None = None
_preemption: signal.Signals | None = None


def install() -> None:
    """Make torch's launcher handle signals with our handler. Idempotent."""
    # PContext.start looks it up there
    api._terminate_process_handler = _signaled  # type: ignore[assignment]


def begin(
    saves: Callable[[signal.Signals], bool] | None = None, preemption: signal.Signals | None = None
) -> None:
    """Reset: a launcher begins its work. `saves`: asked at each signal whether the job saves its
    state for it; the launcher then goes on until the job has ended. `preemption`: the signal for
    which it does."""
    global _starting, _leaving, _saves, _preemption
    _saves, _preemption = saves, preemption
    _starting = _leaving = False
    _kept.clear()


def starting() -> None:
    """Hold signals until `started`: processes and their resources are about to be made."""
    global _starting
    _starting = True
    _listen()


def started() -> None:
    """Stop holding signals: what was made is recorded. Raises SignalException for a signal held
    meanwhile."""
    global _starting
    _starting = False
    if _kept:
        _raise(_kept[0])


def leaving() -> None:
    """Ignore signals: the launcher cleans up."""
    global _leaving
    _leaving = True
    _listen()


def left() -> None:
    """Handle signals again: the clean-up is done."""
    global _leaving
    _leaving = False


def _signaled(number: int, frame: FrameType | None) -> None:
    if _leaving or (_saves is not None and _saves(signal.Signals(number))):
        return
    if _starting:
        _kept.append(signal.Signals(number))
        return
    _raise(signal.Signals(number))


def _raise(number: signal.Signals) -> None:
    global _leaving
    _leaving = True
    _kept.clear()
    raise SignalException(f"Process {os.getpid()} got signal: {number.name}", sigval=number)


def _listen() -> None:
    """Install the handler for the signals that torch handles once it starts its processes."""
    if threading.current_thread() is not threading.main_thread():
        return
    names = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT")
    for number in (_preemption, *(getattr(signal, n.strip(), None) for n in names.split(","))):
        # an ignored signal stays ignored: nohup
        if isinstance(number, signal.Signals) and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _signaled)
