"""Keeps a process going whose output goes into a pipe that nobody reads any more.

In `taskd run … | tee log` a signal to all processes, as a scheduler or a terminal sends it, ends
tee as well. What a process prints next would end it by BrokenPipeError, before the job's state is
saved. In ranks libtaskd drops what comes before this thread is awake.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import threading

STREAMS = {1: "standard output", 2: "standard error"}


def watch(log: logging.Logger) -> None:
    """Have a thread drop this process's output, from the moment on in which the reader of its
    standard output or error is gone; `log` says so. Where none of them is a pipe, do nothing."""
    pipes = [number for number in STREAMS if _is_pipe(number)]
    if pipes:
        name = "taskd-output"
        threading.Thread(target=_wait, args=(pipes, log), name=name, daemon=True).start()


def _wait(pipes: list[int], log: logging.Logger) -> None:
    poller = select.poll()
    for number in pipes:
        poller.register(number, 0)  # POLLERR alone: the last reader has closed it
    while pipes:
        for number, _ in poller.poll():
            poller.unregister(number)
            pipes.remove(number)
            if _is_pipe(number):
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
