"""A process that has imported what ranks import, and forks a rank in ~10 ms; a fresh interpreter
takes ~2 s.

Run by `taskd/start.py` with the arguments FD, RANKS and ROOM, with the ranks' environment but no
slot of its own. The module RANKS has `warm()`, which imports what ranks need, and `run(command,
launcher)`, which a fork runs. The zygote has one thread, holds no process group and never computes:
a fork after an OpenMP parallel region hangs forever (docs/design.md). It answers one request at a
time over the socket FD, and reports the exit of a child over the same socket. It ends when the
socket does. ROOM is blank: a forked rank overwrites it with the command line it shows.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import random
import select
import signal
import socket
import sys
from typing import Any

import msgpack

from taskd import logs, process_title
from taskd.agent.ranks import process_limits

# seconds from the end of the socket until a killed launcher is gone; microseconds, but for its
# memory
GOING = 10.0
# signals that are sent to all processes of a job
NOT_OURS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def main() -> None:
    process_title.hide_room()
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    # What is sent to all processes of a job, as scancel does, reaches the zygote too, which its
    # launcher still needs. Blocked, not ignored: a fork has the dispositions of a process that
    # torch starts, and gets also what was sent to it before it is a rank.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_OURS)
    die_with_parent(True)
    launcher = os.pidfd_open(os.getppid())
    ranks = importlib.import_module(sys.argv[2])
    ranks.warm()
    gc.collect()
    gc.freeze()  # a child must not write to every page by collecting inherited garbage
    connection.send(msgpack.packb({"ready": len(os.listdir("/proc/self/task"))}))
    die_with_parent(False)  # from here on the zygote detects that itself, and kills the ranks too
    request = serve(connection, launcher)
    if request is not None:
        become_rank(request)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ranks.run(request["command"], launcher)


def die_with_parent(yes: bool) -> None:
    """Have the kernel kill this process, or not, when its parent thread ends. The launcher's thread
    that started it lives as long as the launcher."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL if yes else 0)


def serve(connection: socket.socket, launcher: int) -> dict[str, Any] | None:
    """Fork a rank for each request; in the child, return the request. `launcher`: its pidfd; when
    it is killed, the ranks are killed too, whatever they are doing."""
    children: dict[int, int] = {}  # pidfd -> pid
    ours = connection.fileno()

    def tell(message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, which is seen next
            connection.send(msgpack.packb(message))

    def refuse(request: dict[str, Any], error: OSError) -> None:
        refusal = {"refused": error.errno, "why": process_limits.why(error)}
        tell({**refusal, "ticket": request["ticket"]})

    poll = select.poll()
    for fd in (ours, launcher):
        poll.register(fd, select.POLLIN)
    while True:
        ready = [fd for fd, _ in poll.poll()]
        if launcher in ready:
            break
        for fd in [f for f in ready if f != ours]:
            poll.unregister(fd)
            pid = children.pop(fd)
            _, status = os.waitpid(pid, 0)
            os.close(fd)
            tell({"ended": pid, "status": os.waitstatus_to_exitcode(status)})
        if ours not in ready:
            continue
        try:
            data = connection.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            break
        request = msgpack.unpackb(data)
        pipe: tuple[int, ...] = ()
        try:
            pipe = go, start = os.pipe()
            pid = os.fork()
        except OSError as error:  # the agent asks again, if that can help
            for end in pipe:
                os.close(end)
            refuse(request, error)
            continue
        if pid == 0:
            connection.close()
            for fd in (*children, start):
                os.close(fd)
            # this zygote was killed before it reported us: another process has been started instead
            if not os.read(go, 1):
                os._exit(0)
            os.close(go)
            return dict(request)
        os.close(go)
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:  # no descriptor is left; it ends with `start`, before it is a rank
            os.close(start)
            os.waitpid(pid, 0)
            refuse(request, error)
            continue
        children[fd] = pid
        poll.register(fd, select.POLLIN)
        tell({"started": pid, "ticket": request["ticket"]})
        os.write(start, b"x")
        os.close(start)
    if select.select([launcher], [], [], GOING)[0]:
        for pid in children.values():
            for kill in (os.killpg, os.kill):  # before it has begun its session it has no group
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
    return None


def become_rank(request: dict[str, Any]) -> None:
    """In the child: take the rank's environment, streams and session."""
    os.setsid()
    process_title.take([sys.executable, *request["command"]])
    os.environ.clear()
    os.environ.update(request["env"])
    process_title.mark([f"{k}={os.environ[k]}" for k in process_title.MARKS if k in os.environ])
    for number, path in ((1, request["stdout"]), (2, request["stderr"])):
        if path:
            fd = logs.open_to_append(path, fresh=bool(request["first"]))
            os.dup2(fd, number)
            os.close(fd)
    # as in a fresh interpreter, no two processes draw the same numbers
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()


if __name__ == "__main__":
    main()
