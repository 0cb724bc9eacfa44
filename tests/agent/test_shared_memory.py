"""The directory that ranks and agent share, of agents that live, are killed, or start at once."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from taskd import stacks
from taskd.agent import supervisor
from taskd.agent.copies import dumping
from taskd.agent.ranks import shared_memory
from taskd.agent.ranks.model import Epoch, Rank
from taskd.core.job.snapshots import FINAL
from taskd.cython_api.page import Page
from taskd.messages import from_agent, to_agent
from taskd.records import sealed
from taskd.records.store import Entries

# an agent makes its directory, says so, and lives until it is killed
AGENT = """
import sys
from taskd.agent.ranks import shared_memory
shared_memory.SHARED = sys.argv[1]
print(shared_memory.make()[0], flush=True)
sys.stdin.read()
"""
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


@pytest.fixture
def shared(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_memory, "SHARED", str(tmp_path / "shm"))
    monkeypatch.setattr(shared_memory.tempfile, "tempdir", str(tmp_path / "tmp"))
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    return tmp_path / "shm"


@pytest.fixture
def agent(shared):
    """Starts an agent in a process of its own, by that command; returns both."""
    started = []

    def start(*before: str) -> tuple[subprocess.Popen, Path]:
        process = subprocess.Popen(
            [*before, sys.executable, "-c", AGENT, str(shared)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def there(shared: Path) -> set[Path]:
    return set(shared.iterdir())


def test_killed_containers_leave_nothing_and_living_ones_keep_theirs(shared, agent):
    """Each agent is process 1 of a pid namespace: neither pid nor namespace tells them apart."""
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no pid namespace can be made here")
    _, kept = agent(*CONTAINER)
    assert there(shared) == {kept}
    for _ in range(3):
        process, path = agent(*CONTAINER)
        assert path.name.startswith("taskd-job-1-")
        # what killed ones have left is gone, the living one's is not
        assert there(shared) == {kept, path}
        psutil.Process(process.pid).children()[0].kill()
        process.wait()
        assert path.exists()
    ours, lock = shared_memory.make()
    assert there(shared) == {kept, ours}
    shared_memory.remove(ours, lock)
    assert there(shared) == {kept}


def test_what_a_full_shared_memory_has_pushed_aside_is_removed_too(shared, monkeypatch):
    """The directory for temporary files is looked through as well, and before room is measured."""
    left = [Path(base) / "taskd-job-7-left" for base in (shared, shared.parent / "tmp")]
    for path in left:
        path.mkdir()
        (path / "page").write_bytes(b"x")
    monkeypatch.setattr(shared_memory, "_roomy", lambda: None if left[0].exists() else str(shared))
    path, lock = shared_memory.make()
    assert path.parent == shared and not any(p.exists() for p in left)
    os.close(lock)


def test_what_is_not_ours_is_left_alone(shared):
    """Another user's, also for root; a link; and those of a taskd that held no lock."""
    other, old = shared / "taskd-job-8-other", shared / "taskd-4026531836-8-old"
    for path in (other, old):
        path.mkdir()
    link = shared / "taskd-job-9-link"
    link.symlink_to(old)
    if os.geteuid() == 0:
        os.chown(other, 12345, 12345)
    else:
        shutil.rmtree(other)
    before = there(shared)
    path, lock = shared_memory.make()
    assert there(shared) == before | {path}
    os.close(lock)


def test_agents_that_start_at_once_do_not_take_each_others(shared):
    """Four make fifty directories each, while every one of them clears away."""
    children = []
    for _ in range(4):
        if (pid := os.fork()) == 0:
            try:
                good = True
                for _ in range(50):
                    path, lock = shared_memory.make()
                    good = good and not shared_memory.vanished(path, lock) and path.exists()
                    shared_memory.remove(path, lock)
            finally:
                os._exit(0 if good else 1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    assert not there(shared)


def test_a_new_directory_that_another_agent_takes_is_made_again(shared, monkeypatch):
    """Between its making and its lock it looks like a dead agent's."""
    made = shared_memory.tempfile.mkdtemp
    taken = []

    def mkdtemp(**how: str) -> str:
        path = made(**how)
        if not taken:
            taken.append(path)
            shared_memory._clear_away(shared)
        return path

    monkeypatch.setattr(shared_memory.tempfile, "mkdtemp", mkdtemp)
    path, lock = shared_memory.make()
    assert there(shared) == {path} and str(path) != taken[0]
    os.close(lock)


def test_a_vanished_directory_is_named(shared):
    path, lock = shared_memory.make()
    epoch = Epoch(0, path, Page.create(str(path / "page"), 1), lock)
    assert epoch.vanished == ""
    shutil.rmtree(path)
    assert str(path) in epoch.vanished and "RemoveIPC" in epoch.vanished
    epoch.drop()
    with pytest.raises(OSError):
        os.fstat(lock)


def test_a_dump_without_the_directory_fails_with_the_reason(shared, monkeypatch):
    """The job waited for it without an end."""
    monkeypatch.setenv("TASKD_DUMP_PATH", str(shared / "dumps"))
    path, lock = shared_memory.make()
    epoch = Epoch(0, path, Page.create(str(path / "page"), 1), lock)
    epoch.ranks[0] = Rank(0, 0, None, None, os.open("/dev/null", os.O_RDONLY))
    shutil.rmtree(path)
    said: list[from_agent.RecordsSaved] = []
    dumping.save_records(to_agent.SaveRecords(1, 5, "work", ()), 0, epoch, None, said.append)
    epoch.drop()
    assert [str(path) in answer.why for answer in said] == [True]


def test_a_process_that_the_agent_starts_does_not_hold_the_lock(shared):
    """A rank, or what it has started, may outlive the agent."""
    path, lock = shared_memory.make()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.close(lock)  # as the kernel does at the agent's end
    shared_memory._clear_away(shared)
    assert not path.exists()
    child.send_signal(signal.SIGKILL)
    child.communicate()


@pytest.mark.parametrize("refused", ["memfd_create", "symlink", "open"])
def test_memory_files_that_cannot_be_made_are_files_in_the_directory(shared, monkeypatch, refused):
    path, lock = shared_memory.make()
    real = getattr(os, refused)
    left = [2]

    def refuse(*args, **more):
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(*args, **more)

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, refused, refuse)
        held = shared_memory.hold(path, [f"entries-0.{i}" for i in range(4)])
    assert len(held) == 2 and len(set(os.listdir("/proc/self/fd")) - before) == 2
    sealed.write_key(path, b"k" * 32, "job")
    entries = Entries(path, 0, 5)
    for step in range(4):
        entries.write(step, FINAL, entries.seal.close(step, b"content"))
    assert Entries(path, 0, 5).all() == [1, 2, 3]
    where = [(path / f"entries-0.{i}").resolve() for i in range(3)]
    assert [str(at).startswith(str(path)) for at in where] == [False, False, True]
    shared_memory.remove(path, lock, held)
    assert not path.exists()


def test_nobody_makes_a_memory_file_shorter(shared):
    path, lock = shared_memory.make()
    (fd,) = held = shared_memory.hold(path, ["entries-0.0"])
    os.posix_fallocate(fd, 0, 8192)
    with open(path / "entries-0.0", "r+b") as file, pytest.raises(PermissionError):
        os.ftruncate(file.fileno(), 4096)
    os.ftruncate(fd, 1 << 20)
    shared_memory.remove(path, lock, held)


@pytest.mark.parametrize("refused", ["write_key", "create", "pipe", "mkfifo"])
def test_an_epoch_is_made_whole_or_leaves_nothing(shared, monkeypatch, refused):
    where = {"write_key": sealed, "create": Page, "pipe": stacks, "mkfifo": os}

    def full(*args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = set(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(where[refused], refused, full, raising=refused != "create")
        if refused == "create":
            patch.setattr(supervisor, "Page", SimpleNamespace(create=full))
        with pytest.raises(OSError, match="No space left"):
            supervisor.make_epoch(0, b"k" * 32, "job", {0: {}, 1: {}}, {})
    assert there(shared) == set() and set(os.listdir("/proc/self/fd")) == before
    epoch = supervisor.make_epoch(0, b"k" * 32, "job", {0: {}, 1: {}}, {})
    assert epoch.memory == 0 and len(epoch.held) == 14
    epoch.drop()
    assert there(shared) == set()
