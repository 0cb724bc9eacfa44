"""Keeps a process going whose output goes into a pipe that nobody reads any more.

In `taskd run … | tee log` a signal to all processes, as a scheduler or a terminal sends it, ends
tee as well. What a process prints next would end it by BrokenPipeError, before the job's state is
saved. In ranks libtaskd drops what comes before this thread is awake.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import stat
import threading

STREAMS = {1: "standard output", 2: "standard error"}


def watch(log: logging.Logger) -> None:
    """Have a thread drop this process's output, from the moment on in which the reader of its
    standard output or error is gone; `log` says so. Where none of them is a pipe, do nothing."""
    # the kernel looks descriptors up again as it wakes a poll: libtaskd may have put something else
    # there by then, for what was printed first
    pipes = {os.dup(number): number for number in STREAMS if _is_pipe(number)}
    if pipes:
        name = "taskd-output"
        threading.Thread(target=_wait, args=(pipes, log), name=name, daemon=True).start()


def _wait(pipes: dict[int, int], log: logging.Logger) -> None:
    poller = select.poll()
    for copy in pipes:
        poller.register(copy, 0)  # POLLERR alone: the last reader has closed it
    while pipes:
        for copy, _ in poller.poll():
            poller.unregister(copy)
            number, same = pipes.pop(copy), False
            with contextlib.suppress(OSError):  # closed
                same = os.path.samestat(os.fstat(copy), os.fstat(number))
            os.close(copy)
            if same:
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, number)
                os.close(nothing)
            elif not _is_nothing(number):  # the script has put something else there
                continue
            log.warning("nobody reads %s any more: it is dropped", STREAMS[number])


def _is_pipe(number: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(number).st_mode)
    except OSError:  # closed
        return False


def _is_nothing(number: int) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(os.devnull))
    except OSError:
        return False
