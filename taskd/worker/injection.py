"""Injects faults into this process, as `taskd inject` requests.

`memory` really poisons a page (taskd_poison in libtaskd.h); `link` really breaks connections of the
current communicators; `exit` really ends the process. The agent sends signals
(agent/ranks/rank_monitor.py). If the target does not exist yet (a gradient between two steps), the
fault follows when it does.
"""

from __future__ import annotations

import ctypes
import logging
import os
import random
import socket
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from taskd import settings
from taskd.cython_api import library, poison, sockets
from taskd.worker.state import sharded

if TYPE_CHECKING:
    from taskd.worker.job import Job

log = logging.getLogger("taskd.worker")

PAGE = 4096
SO_ATTACH_FILTER = 26
NOT_ALLOWED = (
    "this rank accepts no injected faults: TASKD_FAULT_INJECTION is not on in its environment"
)
# the random numbers of the module `random` belong to the training script
_dice = random.SystemRandom()
# one instruction of the kernel's packet filter: return 0, accept no byte
_DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)


class NotPossible(RuntimeError):
    """The fault cannot be injected here and now; the text says why."""


def carry_out(job: Job, what: str, options: dict[str, str]) -> tuple[bool, str]:
    """Inject the fault `what`. Returns (whether it was done, a description). Runs in the control
    thread."""
    # the manager has checked this too; a rank does not rely on another process for it
    allowed = settings.fault_injection(os.environ)
    ok, text = _carry_out(job, what, options) if allowed else (False, NOT_ALLOWED)
    log.warning("injected fault (%s): %s", what, text)
    return ok, text


def _carry_out(job: Job, what: str, options: dict[str, str]) -> tuple[bool, str]:
    known: dict[str, Callable[[Job, dict[str, str]], str]] = {
        "memory": _memory,
        "endpoints": _endpoints,
        "link": _link,
        "exit": _exit,
    }
    try:
        if what not in known:
            raise NotPossible(f"unknown fault {what!r}; known: {', '.join(known)}")
        return True, known[what](job, options)
    except (NotPossible, OSError) as error:
        return False, str(error)


def _exit(job: Job, options: dict[str, str]) -> str:
    """The agent answers the request when it sees the end."""
    status = options.get("status", "1")
    if not status.isascii() or not status.isdigit() or int(status) > 255:
        raise NotPossible(f"status {status!r}: allowed is a number from 0 to 255")
    log.warning("injected fault: exit with status %s", status)
    os._exit(int(status))


# -- memory ----------------------------------------------------------------------------------------


def _memory(job: Job, options: dict[str, str]) -> str:
    where, number = options.get("where", "parameter"), options.get("page")
    if job.loop is None:
        raise NotPossible("this job is not protected")
    session, attempts = job.loop.session, job.loop.attempts
    state = session.state
    rows: dict[str, list[torch.Tensor]] = {
        "parameter": state.of_modules(),
        "optimizer": state.of_optimizers(),
        "buffer": state.buffers,
        "stripe": session.stripes.rows() if session.stripes is not None else [],
    }
    if where in rows:
        return _poison(_choose(rows[where], where, number))
    if where == "heap":
        return _poison(id(job.__dict__) // PAGE * PAGE)
    if where in ("activation", "gloo"):
        kind = poison.TENSOR if where == "activation" else poison.GLOO
        if not library.preloaded():
            raise NotPossible(
                "libtaskd is not preloaded in this rank and does not see allocations: set"
                " LD_PRELOAD"
            )
        attempts.begun.add(lambda: poison.next_allocation(kind))
        return (
            "the next block of memory for"
            f" {'a tensor of the next step' if where == 'activation' else 'gloo'} will be poisoned"
        )
    if where == "update":
        attempts.updating.add(
            lambda: _poison(_choose(state.of_optimizers() or state.of_modules(), where, number))
        )
        return "a page will be poisoned when the next update begins"
    if where == "gradient":
        parameters = [
            p
            for p in state.parameters()
            if p.requires_grad and p.numel() * p.element_size() >= 2 * PAGE
        ]
        if not parameters:
            raise NotPossible("no gradient of this model fills a memory page")
        _at_gradient(_dice.choice(parameters))
        return "a page of a gradient will be poisoned when it is computed next"
    raise NotPossible(f"unknown place {where!r}")


def _choose(rows: list[torch.Tensor], where: str, number: str | None) -> int:
    """The address of a page that lies wholly in one of the rows: the `number`-th (modulo their
    count), or a random one."""
    pages = []
    for row in rows:
        first = -(-row.data_ptr() // PAGE)
        pages += [(first + i) * PAGE for i in range((row.data_ptr() + row.numel()) // PAGE - first)]
    if not pages:
        raise NotPossible(f"no tensor of this kind ({where}) fills a memory page")
    return pages[int(number) % len(pages)] if number is not None else _dice.choice(pages)


def _poison(address: int) -> str:
    poison.page(address)
    return f"the page at {address:#x} is poisoned"


def _at_gradient(parameter: torch.nn.Parameter) -> None:
    def hook(computed: torch.Tensor) -> None:
        handle.remove()
        if computed.grad is not None:
            row = sharded.local(computed.grad).detach().reshape(-1).view(torch.uint8)
            _poison(_choose([row], "gradient", None))

    handle = parameter.register_post_accumulate_grad_hook(hook)


# -- links -----------------------------------------------------------------------------------------


def _connections() -> list[socket.socket]:
    """The communicators' connections, as duplicates that share everything but the descriptor."""
    found = []
    for fd in sockets.covered():
        try:
            found.append(socket.socket(fileno=socket.dup(fd)))
        except OSError:  # just closed
            continue
    return found


def _name(address: tuple[object, ...]) -> str:
    return f"{address[0]}|{address[1]}"


def _endpoints(job: Job, options: dict[str, str]) -> str:
    """List the local addresses of this rank's connections, separated by spaces."""
    names = []
    for connection in _connections():
        with connection:
            names.append(_name(connection.getsockname()))
    return " ".join(names)


def _link(job: Job, options: dict[str, str]) -> str:
    """Break the connections whose peer address is in `ends`; `how`: cut or drop."""
    ends, how, broken = set(options["ends"].split()), options["how"], 0
    for connection in _connections():
        with connection:
            try:
                if _name(connection.getpeername()) not in ends:
                    continue
                if how == "cut":
                    connection.shutdown(socket.SHUT_RDWR)
                else:
                    _drop(connection)
            except OSError:  # ended meanwhile
                continue
            broken += 1
    if not broken:
        raise NotPossible("there is no connection between the two ranks")
    return (
        f"{broken} connection{'s' if broken > 1 else ''}"
        f" {'cut' if how == 'cut' else 'receive nothing from now on'}"
    )


def _drop(connection: socket.socket) -> None:
    """Have the kernel drop every packet that arrives, before it is acknowledged."""
    program = ctypes.create_string_buffer(_DROP_ALL)
    connection.setsockopt(
        socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HxxxxxxP", 1, ctypes.addressof(program))
    )
