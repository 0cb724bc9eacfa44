"""Launchers and ranks that are forked from a process which has imported torch and taskd.

A launcher and its zygote each take 3 s of a core for these imports, most of what a test's job
costs. `popen` takes such a process where nothing that is set before an interpreter starts differs,
and else starts a fresh one. What depends on how a process begins (command lines, paths, the
environment that /proc shows) is tested with `subprocess` alone.

One server for all of pytest's workers forks the launchers; another, without libtaskd, forks ranks
without a launcher (ranks.py). They end with pytest.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taskd import process_title, start
from taskd.cython_api import library_path

BEGINS = 120.0  # seconds; the imports take 5 on a quiet machine
SIZE = 1 << 17  # of a request: arguments and environment
Completed = subprocess.CompletedProcess[str]
ETC = Path("/etc/netns")
_NEWNS, _NEWUTS, _NEWNET = 0x20000, 0x4000000, 0x40000000
_BIND, _REC, _SLAVE, _DETACH = 0x1000, 0x4000, 0x80000, 2


# -- in a test -------------------------------------------------------------------------------------


class Process:
    """What tests use of subprocess.Popen."""

    def __init__(self, connection: socket.socket, pid: int, args: list[str]) -> None:
        self._connection, self.pid, self.args = connection, pid, args
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        if self._ended(timeout) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = json.loads(self._connection.recv(SIZE))["ended"]
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def popen(
    kind: str,
    arguments: list[str],
    env: Mapping[str, str],
    cwd: Path,
    output: int,
    namespace: str = "",
    errors: int | None = None,
) -> Process:
    """Fork a process: `kind` is "launcher" (`taskd ARGUMENTS`) or "ranks" (`python ranks.py
    ARGUMENTS`, or `python -c CODE`). It leads a session of its own. `output`, `errors`: file
    descriptors that it prints to; a terminal becomes its controlling one. `namespace`: as for
    `ip netns exec`."""
    connection = _connect(kind)
    request = {
        "arguments": arguments,
        "env": dict(env),
        "cwd": str(cwd),
        "namespace": namespace,
    }
    streams = [output, output if errors is None else errors]
    socket.send_fds(connection, [json.dumps(request).encode()], streams)
    assert select.select([connection], [], [], BEGINS)[0], f"no {kind} after {BEGINS:g} s"
    pid = json.loads(connection.recv(SIZE))["started"]
    return Process(connection, pid, arguments)


def python(code: str, env: Mapping[str, str], timeout: float = 60.0) -> Completed:
    """As subprocess.run for `python -c CODE`, with what it has printed as text."""
    return run("ranks", ["-c", code], env, Path.cwd(), timeout)


def run(
    kind: str, arguments: list[str], env: Mapping[str, str], cwd: Path, timeout: float
) -> Completed:
    """As subprocess.run, with what it has printed as text; see popen()."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        streams = output.fileno(), errors.fileno()
        process = popen(kind, arguments, env, cwd, streams[0], errors=streams[1])
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        for file in (output, errors):
            file.seek(0)
        return Completed(process.args, status, output.read(), errors.read())


def suits(env: Mapping[str, str]) -> bool:
    """Whether a process that was forked can have this environment: nothing in it is read only when
    an interpreter starts or torch is imported."""
    customized = any((Path(entry) / "sitecustomize.py").exists() for entry in _path(env))
    return _early(env) == _early(_environment("ranks")) and not customized


def _early(env: Mapping[str, str]) -> dict[str, str]:
    names = ("PYTHON", "LD_", "OMP_", "TORCH", "MKL_", "PATH")
    return {k: v for k, v in env.items() if k.startswith(names) and k != "PYTHONPATH"}


def _path(env: Mapping[str, str]) -> list[str]:
    """What PYTHONPATH adds to that of this process."""
    entries = env.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if entry and entry not in sys.path]


def _environment(kind: str) -> dict[str, str]:
    names = ("TASKD_", "MINDX_", "POD_IP", "LD_PRELOAD")
    found = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    found.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    if kind == "launcher":
        found.update(LD_PRELOAD=library_path())
    return found


def _connect(kind: str) -> socket.socket:
    """A connection to the server, which is begun if there is none."""
    # pytest, of which this may be a worker
    pytest = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    address = f"taskd-tests-{pytest}-{kind}"  # abstract
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect("\0" + address)
    except ConnectionRefusedError:
        until = os.pidfd_open(pytest)
        begun, begins = os.pipe()
        name, spare = process_title.SPARE
        command = [sys.executable, "-u", __file__, kind, address, str(until), str(begins)]
        subprocess.Popen(
            [*command, process_title.ROOM],
            env={**_environment(kind), name: spare},
            pass_fds=[until, begins],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(until)
        os.close(begins)
        os.read(begun, 1)  # until it listens, or has ended because another one does
        os.close(begun)
        connection.connect("\0" + address)
    return connection


# -- the server ------------------------------------------------------------------------------------


def main() -> None:
    kind, address, until, begins = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    del sys.path[0]  # this file's directory
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind("\0" + address)
    except OSError:  # another worker's is there
        return
    listener.listen(64)
    os.write(begins, b"x")
    os.close(begins)
    for number in (1, 2):  # pytest does not wait for this process to close its output
        os.dup2(0, number)
    if kind == "launcher":
        from taskd.worker.process import forked

        forked.warm()
        importlib.import_module("taskd.cli.run")
        importlib.import_module("taskd.adaptor.torch_elastic")
    else:
        from taskd.worker.process.forked import WARM

        for name in WARM:
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    assert len(os.listdir("/proc/self/task")) == 1
    request = _serve(listener, until)
    if request is None:
        return
    arguments = request["arguments"]
    if kind == "launcher":
        _be_a_launcher(arguments)
    elif arguments[0] == "-c":
        sys.argv = ["-c"]
        exec(arguments[1], {"__name__": "__main__"})
    else:
        sys.argv = ["ranks.py", *arguments]
        sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
        importlib.import_module("ranks").main()


def _serve(listener: socket.socket, until: int) -> dict[str, Any] | None:
    """Fork for each request; in the child, return the request. Ends when the process of the pidfd
    `until` does; its children go on, their tests have ended them or were killed themselves."""
    children: dict[int, tuple[int, socket.socket]] = {}  # pidfd -> pid, who asked
    poll = select.poll()
    for fd in (listener.fileno(), until):
        poll.register(fd, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if until in ready:
            return None
        for fd in ready & set(children):
            poll.unregister(fd)
            pid, connection = children.pop(fd)
            status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(fd)
            with connection:
                _tell(connection, ended=status)
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            message, fds, _, _ = socket.recv_fds(connection, SIZE, 2)
            request = json.loads(message)
            pid = os.fork()
            if pid == 0:
                listener.close()
                for fd, (_, other) in children.items():
                    os.close(fd)
                    other.close()
                os.close(until)
                _become(request, fds)
                _tell(connection, started=os.getpid())
                connection.close()
                return dict(request)
            for stream in fds:
                os.close(stream)
            fd = os.pidfd_open(pid)
            children[fd] = pid, connection
            poll.register(fd, select.POLLIN)


def _tell(connection: socket.socket, **message: int) -> None:
    with contextlib.suppress(OSError):  # who asked has ended
        connection.send(json.dumps(message).encode())


def _become(request: dict[str, Any], streams: list[int]) -> None:
    os.setsid()
    if os.isatty(streams[0]):
        fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
    # pytest's starter may ignore them
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if request["namespace"]:
        _enter(request["namespace"])
    os.chdir(request["cwd"])
    sys.path[:0] = _path(request["env"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, stream in zip((1, 2), streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)


def _enter(namespace: str) -> None:
    """As `ip netns exec` does, with the host's name besides."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name: str, *arguments: object) -> None:
        if getattr(libc, name)(*arguments):
            raise OSError(ctypes.get_errno(), f"{name}{arguments}")

    fd = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
    call("setns", fd, _NEWNET)
    os.close(fd)
    call("unshare", _NEWNS | _NEWUTS)
    socket.sethostname((ETC / namespace / "hostname").read_text().strip())
    call("mount", b"", b"/", b"none", ctypes.c_ulong(_SLAVE | _REC), None)
    libc.umount2(b"/sys", _DETACH)
    call("mount", namespace.encode(), b"/sys", b"sysfs", ctypes.c_ulong(0), None)
    for file in (ETC / namespace).iterdir():
        there = os.fsencode(Path("/etc") / file.name)
        call("mount", os.fsencode(file), there, b"none", ctypes.c_ulong(_BIND), None)


# -- a launcher ------------------------------------------------------------------------------------


def _be_a_launcher(arguments: list[str]) -> None:
    """`taskd ARGUMENTS`, whose first zygote is a fork too: made now, while there is one thread, and
    told later what it would have been started with."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _be_its_zygote(theirs)
        return
    theirs.close()
    process_title.take([sys.executable, "taskd", *arguments])
    from taskd.agent.ranks import processes

    first, started = [ours], processes.start_zygote

    def start_zygote(fd: int, ranks: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        # without libtaskd a zygote is a process of its own: it is loaded in this one
        preload = {"LD_PRELOAD": env.get("LD_PRELOAD", "")}
        if not first or not preload["LD_PRELOAD"] or _early(env) != _early(os.environ) | preload:
            return started(fd, ranks, env)
        with first.pop() as line:
            request = {"ranks": ranks, "env": env}
            socket.send_fds(line, [json.dumps(request).encode()], [fd])
        made = subprocess.Popen(["true"])  # for what else there is to know of a child
        made.wait()
        made.pid, made.returncode = pid, None
        return made

    processes.start_zygote = start_zygote
    sys.argv = ["taskd", *arguments]
    from taskd.cli import main as taskd

    taskd()


def _be_its_zygote(line: socket.socket) -> None:
    message, fds, _, _ = socket.recv_fds(line, SIZE, 4)
    line.close()
    if not message:  # the launcher needed none
        os._exit(0)
    os.setsid()
    request = json.loads(message)
    name, ranks = "taskd.agent.ranks.zygote", request["ranks"]
    process_title.take(start.command(name, str(fds[0]), ranks, unbuffered=True))
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [name, str(fds[0]), ranks]
    runpy.run_module(name, run_name="__main__")


if __name__ == "__main__":
    main()
