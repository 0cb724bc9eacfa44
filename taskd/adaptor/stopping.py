"""Signals to the launcher: one ends it in order, at any moment.

torch raises SignalException wherever its main thread is. Between two lines that start something and
note that it was started, nobody would end what was started; while the launcher cleans up, a second
signal would keep it from that. So a signal is kept until what is being started is noted, and is not
heard while the launcher is on its way out. SIGKILL needs none of this.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

import torch.distributed.elastic.multiprocessing.api as api
from torch.distributed.elastic.multiprocessing.api import SignalException

_starting = False
_leaving = False
_kept: list[signal.Signals] = []


def install() -> None:
    """From now on torch's launcher listens to signals with our handler. Idempotent."""
    api._terminate_process_handler = _told  # type: ignore[assignment]  # PContext.start looks it up there


def begin() -> None:
    """A launcher begins its work."""
    global _starting, _leaving
    _starting = _leaving = False
    _kept.clear()


def starting() -> None:
    """Processes and what belongs to them are about to be made: signals are kept until `started`."""
    global _starting
    _starting = True
    _listen()


def started() -> None:
    """What was made is noted. Raises SignalException for a signal that has come meanwhile."""
    global _starting
    _starting = False
    if _kept:
        _raise(_kept[0])


def leaving() -> None:
    """The launcher cleans up, and no signal keeps it from that."""
    global _leaving
    _leaving = True
    _listen()


def left() -> None:
    """It has: the program that it is in hears signals again."""
    global _leaving
    _leaving = False


def _told(number: int, frame: FrameType | None) -> None:
    if _leaving:
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
    """Those that torch handles, as it does once it starts its processes."""
    if threading.current_thread() is not threading.main_thread():
        return
    for name in os.environ.get(
        "TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    ).split(","):
        number = getattr(signal, name.strip(), None)
        # what is ignored stays so: nohup
        if isinstance(number, signal.Signals) and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _told)
