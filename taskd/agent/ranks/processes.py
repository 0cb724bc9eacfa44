"""The processes of a node: those that the launcher started, those that the zygote forked, orphans
that the launcher adopts, and how their ends are detected.

Orphans are the children of a dead zygote, adopted to learn their exit codes, and processes that
ranks leave behind, which are ended (children.py) and reaped.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgpack

from taskd import process_title, start

log = logging.getLogger("taskd.agent")

_PR_SET_CHILD_SUBREAPER = 36
_PF_EXITING = 0x4
# fields of /proc/PID/stat after the name: proc(5) counts them as 3, 4, 6, 9 and 52
_STATE, _PARENT, _SESSION, _FLAGS, _EXIT_CODE = 0, 1, 3, 6, 49
REAPED = 1.0  # seconds

# si_code of a SIGBUS that libtaskd did not contain. Kernels without CONFIG_MEMORY_FAILURE report a
# poisoned page with the first.
_LOST = {
    2: "a lost memory page outside of tensors, or a file that was cut short",
    4: "an uncorrectable memory error outside of tensors",
    5: "an uncorrectable memory error outside of tensors",
}


class Forked:
    """A rank that the zygote forked, with the part of subprocess.Popen that torch's handlers
    use."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._over = threading.Event()

    def end(self, status: int) -> None:
        self.returncode = status
        self._over.set()

    def adopt(self) -> None:
        """Wait for the process as its new parent: the zygote that would report its end is gone."""

        def wait() -> None:
            with contextlib.suppress(OSError):  # it is gone
                pidfd = os.pidfd_open(self.pid)
                ended = select.poll()
                ended.register(pidfd, select.POLLIN)
                ended.poll()
                os.close(pidfd)
            if self.returncode is None:
                self.end(orphan_code(self.pid))

        threading.Thread(target=wait, name="taskd-adopted", daemon=True).start()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._over.wait(timeout):
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Ordered(Forked):
    """A placeholder for a rank that has been ordered but not started yet."""

    def __init__(self) -> None:
        super().__init__(0)

    def send_signal(self, number: int) -> None:
        self.end(-number)


def signal_group(process: Forked | subprocess.Popen[bytes], number: int) -> None:
    """Signal a rank's process and its group. A process that has just been forked has no group until
    it calls setsid(): it is signaled alone, else the launcher would wait 30 s for it."""
    if process.pid != 0:  # 0 is a placeholder; for killpg() it is our own group
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
            return
    process.send_signal(number)


class Handler:
    """Replaces torch's SubprocessHandler; its process may come later."""

    def __init__(self, proc: Forked | subprocess.Popen[bytes], local_rank: int) -> None:
        self.proc, self.local_rank_id = proc, local_rank
        self._lock = threading.Lock()

    def take(self, proc: Forked | subprocess.Popen[bytes]) -> bool:
        """Adopt the started process. False if the launcher has already ended the placeholder."""
        with self._lock:
            if isinstance(self.proc, Ordered) and self.proc.returncode is not None:
                return False
            self.proc = proc
            return True

    def close(self, death_sig: signal.Signals | None = None) -> None:
        number = death_sig or signal.SIGTERM
        with self._lock:
            if isinstance(self.proc, Forked) and number != signal.SIGKILL:
                # The rank alone, not its group: a loader whose workers die first raises in the
                # middle of what the script's handler saves. They are ended after it.
                self.proc.send_signal(number)
            else:
                signal_group(self.proc, number)


class Zygote:
    """The agent's side of `zygote.py`. `request` and `receive` never block."""

    def __init__(self, environment: dict[str, str], ranks: str) -> None:
        """`ranks`: the module that imports what ranks need, see zygote.py."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self.socket = ours
        self.ready = False
        with theirs:
            self._process = start_zygote(theirs.fileno(), ranks, environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, message: dict[str, Any]) -> bool:
        """Send a request; False if the zygote cannot take it."""
        try:
            self.socket.send(msgpack.packb(message))
        except OSError:
            return False
        return True

    def receive(self) -> dict[str, Any] | None:
        """The next message; None when there is none. Raises EOFError when the zygote is gone."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            raise EOFError
        return dict(msgpack.unpackb(data))

    def kill(self) -> None:
        """Kill the zygote and wait for its end."""
        self._process.kill()
        self._process.wait()

    def end(self) -> int | None:
        """Wait for the zygote, which has closed its socket, and return its exit code."""
        self.socket.close()
        try:
            return self._process.wait(1.0)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


def start_zygote(fd: int, ranks: str, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        start.command(
            "taskd.agent.ranks.zygote", str(fd), ranks, process_title.ROOM, unbuffered=True
        ),
        pass_fds=[fd],
        # Ctrl-C is for the launcher, which ends the ranks
        start_new_session=True,
        env={**environment, process_title.SPARE[0]: process_title.SPARE[1]},
    )


def leaving(pid: int) -> bool:
    """Whether the process is dead or dying: true within 0.3 ms of a SIGKILL, long before its parent
    is notified."""
    fields = _stat(pid)
    return (
        fields is None or fields[_STATE] in (b"Z", b"X") or bool(int(fields[_FLAGS]) & _PF_EXITING)
    )


def reaped(pid: int) -> bool:
    """Whether there is no such process any more: its parent has its exit code."""
    return _stat(pid) is None


def parent(pid: int) -> int:
    """The parent's pid; 0 if the process is gone."""
    fields = _stat(pid)
    return int(fields[_PARENT]) if fields is not None else 0


def _stat(pid: int) -> list[bytes] | None:
    """/proc/PID/stat from its third field on; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def exit_code(pidfd: int | None, process: Any) -> int | None:
    """The exit code of a rank's process, negative for a signal; None if it has not ended, or the
    code is unknown. Does not reap a zombie: torch's launcher needs the exit code too, and may
    already have it."""
    if process is None:
        return None
    if process.returncode is None and pidfd is not None:
        with contextlib.suppress(OSError):
            info = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    if process.returncode is None and (code := noted_code(process.pid)) is not None:
        return code
    if (
        process.returncode is None
        and isinstance(process, subprocess.Popen)
        and _stat(process.pid) is None
    ):
        # the launcher's thread is between reaping it and noting the code: microseconds, unless the
        # machine is busy
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(REAPED)
    return None if process.returncode is None else int(process.returncode)


def noted_code(pid: int) -> int | None:
    """The exit code that the kernel notes before it frees a process's memory, which may take long.
    The kernel also shows 0 for a live process or a hidden code, so 0 counts as unknown."""
    fields = _stat(pid)
    if fields is None or len(fields) <= _EXIT_CODE or not int(fields[_FLAGS]) & _PF_EXITING:
        return None
    status = int(fields[_EXIT_CODE])
    return os.waitstatus_to_exitcode(status) if status else None


def describe(
    code: int | None,
    records: list[dict[str, Any]],
    killed: str = "",
    memory: Callable[[], str] = lambda: "",
) -> str:
    """Why a process ended: its exit code if known, and details from libtaskd's record. A record
    that does not match the code belongs to a signal that the process survived. `killed`: why this
    agent killed it, else "". `memory`: OutOfMemory.took_one."""
    fatal = next((r for r in reversed(records) if r.get("kind") == "signal"), None)
    if fatal is not None and code in (None, -fatal["sig"]):
        name = _signal_name(fatal["sig"])
        if fatal["sig"] not in (signal.SIGSEGV, signal.SIGBUS):
            return f"killed by {name}"
        lost = (
            f" ({_LOST[fatal['code']]})"
            if fatal["sig"] == signal.SIGBUS and fatal["code"] in _LOST
            else ""
        )
        return f"killed by {name} at address {fatal['addr']:#x}{lost}"
    if code is not None and code < 0:
        by = ""
        if code == -signal.SIGKILL:
            by = killed and f"by its agent: {killed}"
            by = f" ({by or memory() or 'by another process, not by taskd'})"
        return f"killed by {_signal_name(-code)}{by}"
    if code is not None:
        return f"exited with status {code}"
    ended = next((r for r in reversed(records) if r.get("kind") in ("exit", "abort")), None)
    if ended is not None:
        return (
            f"exited with status {ended['code']}" if ended["kind"] == "exit" else "called abort()"
        )
    return "ended, cause unknown"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def adopt_orphans() -> None:
    """Make this process the parent of its descendants when their own parent ends."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans(sessions: Iterable[int], known: Iterable[int]) -> None:
    """Reap dead processes that ranks have left behind in `sessions`, except `known`, which other
    code waits for."""
    ours, waited = set(sessions), set(known)
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            for pid in map(int, (task / "children").read_text().split()):
                if pid not in waited and _dead_of(pid) in ours:
                    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)


def orphan_code(pid: int) -> int:
    """The exit code of an adopted process, negative for a signal; that of SIGKILL if the kernel
    cannot tell yet."""
    with contextlib.suppress(OSError):
        info = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if info is not None:
            return info.si_status if info.si_code == os.CLD_EXITED else -info.si_status
    return -signal.SIGKILL


def _dead_of(pid: int) -> int:
    """The session of a zombie; -1 for any other process."""
    fields = _stat(pid)
    return int(fields[_SESSION]) if fields is not None and fields[_STATE] == b"Z" else -1
