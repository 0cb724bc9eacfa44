"""How a rank's process ended is told as it was, or as unknown."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from taskd.agent.ranks import process_limits
from taskd.agent.ranks.processes import describe, exit_code, noted_code, orphan_code
from taskd.agent.ranks.rank_processes import RankProcesses
from taskd.cython_api import library_path
from taskd.cython_api.page import Page

SIGKILL = "killed by SIGKILL (by another process, not by taskd)"
WAYS = {
    "os.kill(os.getpid(), 9)": (-9, SIGKILL),
    "os.kill(os.getpid(), 15)": (-15, "killed by SIGTERM"),
    "os.kill(os.getpid(), 10)": (-10, "killed by SIGUSR1"),
    "os._exit(1)": (1, "exited with status 1"),
    "os._exit(0)": (0, "exited with status 0"),
    "sys.exit(3)": (3, "exited with status 3"),
    "sys.exit(0)": (0, "exited with status 0"),
    "1 / 0": (1, "exited with status 1"),
    "threading.Thread(target=os._exit, args=(4,)).start(); threading.Event().wait()": (
        4,
        "exited with status 4",
    ),
}
SCRIPT = (
    "import os, sys, threading; print(); sys.stdout.flush(); sys.stdin.readline(); sys.stderr ="
    " None; "
)


@pytest.fixture
def page(tmp_path):
    return Page.create(str(tmp_path / "page"), 1)


def begin(page, way):
    env = {
        **os.environ,
        "TASKD_PAGE": page.path,
        "TASKD_SLOT": "0",
        "RANK": "0",
        "LD_PRELOAD": library_path(),
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT + way], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env
    )
    process.stdout.readline()
    return process


def death(page, process):
    """What the agent hears, when it hears it: from the page as the process dies, and by its
    pidfd."""
    fd = os.pidfd_open(process.pid)
    try:
        page.wait_death(0)
        early = exit_code(fd, process)
        seen = threading.Event()
        threading.Thread(
            target=lambda: (os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOWAIT), seen.set()),
            daemon=True,
        ).start()
        seen.wait(20)
        return early, exit_code(fd, process)
    finally:
        os.close(fd)


@pytest.mark.parametrize("way", WAYS)
def test_the_cause_is_the_true_one_however_early_it_is_asked_for(page, way):
    code, text = WAYS[way]
    process = begin(page, way)
    process.stdin.close()
    early, late = death(page, process)
    assert late == code and describe(late, page.records(0)) == text
    assert early in (code, None)
    assert describe(early, page.records(0)) in (text, "ended, cause unknown")
    process.wait()


@pytest.mark.parametrize("way", WAYS)
def test_the_launcher_that_reaps_first_takes_nothing_away(page, way):
    """torch's launcher polls its processes in another thread, and the agent is the later of the
    two."""
    code, text = WAYS[way]
    process = begin(page, way)
    fd = os.pidfd_open(process.pid)
    process.stdin.close()
    assert process.wait(20) == code
    assert exit_code(fd, process) == code
    assert describe(exit_code(fd, process), page.records(0)) == text
    os.close(fd)


def test_between_reaping_and_noting_the_code_is_waited_for():
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    fd = os.pidfd_open(process.pid)
    with process._waitpid_lock:  # as a thread in the middle of Popen.poll() holds it
        _, status = os.waitpid(process.pid, 0)
        noting = threading.Timer(0.2, lambda: process._handle_exitstatus(status))
        noting.start()
        answer = []
        asking = threading.Thread(target=lambda: answer.append(exit_code(fd, process)))
        asking.start()
        noting.join()
    asking.join()
    assert answer == [7]
    os.close(fd)


def test_a_replacement_on_a_device_waits_until_the_last_process_is_gone():
    """Its memory there is freed with the process, not with its main thread."""
    started = threading.Event()
    processes = SimpleNamespace(node=SimpleNamespace(call=lambda action: action()))
    last = subprocess.Popen(["sleep", "60"])
    waits = threading.Thread(
        target=RankProcesses._once_gone,
        args=(processes, os.pidfd_open(last.pid), 0, started.set),
    )
    waits.start()
    assert not started.wait(0.2)
    last.kill()
    assert started.wait(10)
    waits.join(10)
    last.wait()


def test_what_nobody_knows_is_not_guessed():
    assert describe(None, []) == "ended, cause unknown"
    gone = SimpleNamespace(pid=2**22 + 1, returncode=None)  # a pid that no process has
    assert exit_code(None, gone) is None and noted_code(gone.pid) is None
    assert noted_code(os.getpid()) is None  # it lives


def test_a_record_of_what_was_survived_is_no_cause():
    survived = [
        {"kind": "signal", "sig": signal.SIGSEGV, "code": 1, "addr": 0x10},
        {"kind": "abort", "sig": 6, "code": 0},
    ]
    assert describe(3, survived) == "exited with status 3"
    assert describe(-9, survived) == SIGKILL
    assert describe(-11, survived) == "killed by SIGSEGV at address 0x10"


def test_the_end_of_an_orphan_is_known_and_what_ranks_leave_behind_is_cleared_away():
    text = """
import os, signal, subprocess, sys, time
from taskd.agent.ranks.processes import adopt_orphans, orphan_code, reap_orphans
adopt_orphans()
command = ["sh", "-c", "sleep 100 & echo $!; exec sleep 100"]
rank = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE)
left = int(rank.stdout.readline())
rank.kill(); rank.wait()
os.kill(left, signal.SIGTERM)
os.waitid(os.P_PID, left, os.WEXITED | os.WNOWAIT)
print(orphan_code(left))
reap_orphans([rank.pid], [left]); print(os.path.exists(f"/proc/{left}"))
reap_orphans([1], []); print(os.path.exists(f"/proc/{left}"))
reap_orphans([rank.pid], []); print(os.path.exists(f"/proc/{left}"))
"""
    said = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    ).stdout.split()
    assert said == [str(-signal.SIGTERM), "True", "True", "False"]


def test_the_end_of_nobody_is_taken_for_a_kill():
    assert orphan_code(os.getpid()) == -signal.SIGKILL


TWO, NONE = str(1 << 31), str(2**63 - 4096)  # bytes; cgroup 1 has a number for no limit


@pytest.mark.parametrize(
    ("cgroup", "count", "limit"),
    [
        ("0::/pod", "pod/memory.events", ("pod/memory.max", TWO)),
        (
            "4:memory:/host/pod",
            "memory/memory.oom_control",
            ("memory/memory.limit_in_bytes", "2147483648"),
        ),
        (
            "4:memory:/pod",
            "memory/pod/memory.oom_control",
            ("memory/pod/memory.limit_in_bytes", str(2**63)),
        ),
    ],
)
def test_a_kill_for_want_of_memory_is_told_once(tmp_path, monkeypatch, cgroup, count, limit):
    """By the cgroup's count, for each process that the kernel has killed since the agent began."""
    own = tmp_path / "cgroup"
    own.write_text(f"9:pids:/\n{cgroup}\n")
    (tmp_path / count).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / count).write_text("oom 7\noom_kill 3\n")
    (tmp_path / limit[0]).write_text(limit[1])
    monkeypatch.setattr(process_limits, "CGROUPS", tmp_path)
    monkeypatch.setattr(process_limits, "OWN", own)
    memory = process_limits.OutOfMemory()
    assert describe(-9, [], memory=memory.took_one) == SIGKILL
    (tmp_path / count).write_text("oom 7\noom_kill 4\n")
    told = "killed by SIGKILL (by the kernel, because memory ran out in its container"
    more = ", which may have 2.0 GiB)" if limit[1] == TWO else ")"
    assert describe(-9, [], memory=memory.took_one) == told + more
    assert describe(-9, [], memory=memory.took_one) == SIGKILL
    assert (
        describe(-9, [], "it hangs", memory.took_one)
        == "killed by SIGKILL (by its agent: it hangs)"
    )
