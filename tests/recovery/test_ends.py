"""Every way to end a job ends it, leaves no process behind, and has the documented status."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import training

from tests.lab import warm

# a rank that needs no torch; what it does about a signal, and with which status it ends
RANK = """
import os, signal, sys, time
from pathlib import Path
here, deaf, status = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
if deaf:
    signal.signal(getattr(signal, deaf), signal.SIG_IGN)
(here / ("pid-" + os.environ["RANK"])).write_text(str(os.getpid()))
while not (here / "end").exists():
    time.sleep(0.02)
sys.exit(status)
"""
# how: the status of `taskd run` and of torchrun, as in docs/operations.md
TABLE = {
    "all ranks end well": (0, 0),
    "a rank fails": (1, 1),
    "a rank is killed": (1, 1),
    "SIGTERM": (1, 1),
    "SIGTERM to its group": (1, 1),
    "SIGTERM to all": (1, 1),
    "SIGHUP": (1, 1),
    "SIGHUP is ignored": (0, 1),
    "Ctrl-C": (1, 1),
    "Ctrl-C twice": (1, 1),
    "a closed terminal": (1, 1),
    "SIGTERM at once": (-signal.SIGTERM, -signal.SIGTERM),
    "SIGKILL": (-signal.SIGKILL, -signal.SIGKILL),
    "SIGTERM to PID 1": (1, 1),
    "SIGTERM to PID 1 at once": (128 + signal.SIGTERM, None),  # torchrun does not hear it
}


class Launcher:
    def __init__(self, directory: Path, how: str, torchrun: bool) -> None:
        self.how, self.directory, self.data = how, directory, b""
        terminal = how in ("Ctrl-C", "Ctrl-C twice", "a closed terminal")
        program = ["taskd", "run"]
        if torchrun:
            program = ["torchrun", "--master_port", str(training.free_port())]
        command = [str(training.BIN / program[0]), *program[1:], "--nproc_per_node", "2"]
        (directory / "rank.py").write_text(RANK)
        deaf = "SIGINT" if how == "Ctrl-C twice" else ""
        status = "5" if how == "a rank fails" else "0"
        command += ["--max_restarts", "0", "rank.py", str(directory), deaf, status]
        environment = training.environment(directory)
        self.output, output = pty.openpty() if terminal else os.pipe()

        def prepare() -> None:
            # who started pytest may ignore them
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if how == "SIGHUP is ignored":
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
            if terminal:
                fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process: subprocess.Popen[bytes] | warm.Process
        own = "PID 1" in how or how in ("SIGHUP is ignored", "SIGTERM at once")
        if own or torchrun:
            self.process = subprocess.Popen(
                [*(("unshare", "-pf", "--mount-proc") if "PID 1" in how else ()), *command],
                env=environment,
                cwd=directory,
                stdin=output if terminal else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=prepare,
            )
        else:
            self.process = warm.popen("launcher", command[1:], environment, directory, output)
        os.close(output)

    def until(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + training.LIMIT
        while not condition():
            assert self.process.poll() is None and time.monotonic() < end, self.text()
            time.sleep(0.01)

    def pid(self) -> int:
        """Of the launcher itself, under `unshare` too."""
        if "PID 1" not in self.how:
            return self.process.pid
        process = psutil.Process(self.process.pid)
        self.until(process.children)
        return int(process.children()[0].pid)

    def ranks(self) -> list[int]:
        """Wait until they run; their pids, where they see themselves."""
        files = [self.directory / f"pid-{rank}" for rank in range(2)]
        self.until(lambda: all(file.exists() and file.read_text() for file in files))
        return [int(file.read_text()) for file in files]

    def text(self, until: bytes | None = None) -> str:
        """What it prints until that, or until all processes that can print have ended."""
        while until is None or until not in self.data:
            assert select.select([self.output], [], [], training.LIMIT)[0], self.data.decode()
            try:
                part = os.read(self.output, 1 << 16)
            except OSError:  # a terminal without a process
                part = b""
            if not part:
                break
            self.data += part
        return self.data.decode()

    def bring_about(self) -> None:
        how, number = self.how, getattr(signal, self.how.split()[0], signal.SIGTERM)
        if how.endswith("at once"):
            pid = self.pid()
            if "PID 1" in how:
                self.until(lambda: catches(pid, number))
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
            os.kill(pid, number)
            return
        ranks = self.ranks()
        if how in ("all ranks end well", "a rank fails", "SIGHUP is ignored"):
            if how == "SIGHUP is ignored":
                os.kill(self.pid(), number)
            (self.directory / "end").touch()
        elif how == "a rank is killed":
            os.kill(ranks[1], signal.SIGKILL)
        elif how.startswith("Ctrl-C"):
            os.write(self.output, b"\x03")
            if how == "Ctrl-C twice":
                self.text(b"closing signal SIGINT")
                time.sleep(0.2)  # what comes within 0.1 s counts as one
                os.write(self.output, b"\x03")
        elif how == "a closed terminal":
            os.close(self.output)
            self.output = os.open(os.devnull, os.O_RDONLY)
        elif how == "SIGTERM to its group":
            os.killpg(self.pid(), number)
        elif how == "SIGTERM to all":
            launcher = psutil.Process(self.pid())
            for process in (launcher, *launcher.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
        else:
            os.kill(self.pid(), number)

    def end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            for child in process.children(recursive=True):
                child.kill()
        self.process.kill()
        self.process.wait()
        os.close(self.output)


def catches(pid: int, number: int) -> bool:
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)


def needs_namespaces(how: str) -> None:
    if "PID 1" in how and subprocess.run(["unshare", "-pf", "--mount-proc", "true"]).returncode:
        pytest.skip("no PID namespace can be made here")


@pytest.mark.parametrize("how", TABLE)
def test_how_taskd_run_ends(tmp_path, how):
    """With its status, no traceback, no process left, and without the 30 s after which torch kills
    ranks that have not ended."""
    needs_namespaces(how)
    launcher = Launcher(tmp_path, how, torchrun=False)
    try:
        launcher.bring_about()
        assert launcher.process.wait(training.LIMIT) == TABLE[how][0]
        said = launcher.text()
    finally:
        launcher.end()
    assert "forcefully exiting" not in said
    assert "zygote has ended" not in said and "no manager is in charge" not in said
    if TABLE[how][0] == 1 and " rank" not in how and how != "a closed terminal":
        assert "taskd: the job was ended by SIG" in said
        # a rank's own, for Ctrl-C
        assert "SignalException" not in said and "/taskd/" not in said, said
    if how != "SIGKILL":  # the next job removes it
        assert not list(Path("/dev/shm").glob(f"taskd-*-{launcher.process.pid}-*"))


@pytest.mark.long
@pytest.mark.parametrize("how", [how for how in TABLE if TABLE[how][1] is not None])
def test_how_torchrun_ends(tmp_path, how):
    needs_namespaces(how)
    launcher = Launcher(tmp_path, how, torchrun=True)
    try:
        launcher.bring_about()
        assert launcher.process.wait(training.LIMIT) == TABLE[how][1]
    finally:
        for file in tmp_path.glob("pid-*"):  # it may leave its ranks behind
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
        launcher.end()


@pytest.mark.parametrize("when", ["training", "pause", "repair"])
def test_a_scripts_own_handler_finishes(tmp_path, when):
    """Also if the ranks wait for orders, which no longer come; in a repair one fails without the
    other, and at once."""
    directory = tmp_path / "job"
    with training.start(directory, 2, "leaving.py") as job:
        files = [directory / f"trains-{rank}" for rank in range(2)]
        job.until("all ranks trained", lambda: all(f.exists() and f.read_text() for f in files))
        if when == "pause":
            job.control.pause()
        elif when == "repair":
            os.kill(job.zygote(), signal.SIGSTOP)  # what would fork the replacement
            os.kill(int(files[1].read_text()), signal.SIGKILL)
            job.until("a rank waited", lambda: "interrupted" in job.phases())
        job._process.send_signal(signal.SIGTERM)
        job.until("it had ended", lambda: job._process.poll() is not None)
        result = job.result()
    assert result.status == 1
    assert "forcefully exiting" not in result.output
    written = sorted(
        file.name for kind in ("saved", "told") for file in directory.glob(f"{kind}-*")
    )
    if when != "repair":
        assert written == ["saved-0", "saved-1", "told-0", "told-1"]
