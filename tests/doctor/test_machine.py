"""What is looked at on the machine: limits, shared memory, clocks, kernel, and who may read the
secret."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.cython_api import poison
from taskd.doctor import clock, kernel, limits, secret, shared_memory
from taskd.protocol import secret_file

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("found", "nodes", "ranks", "state", "words"),
    [
        (
            (1024, 4096),
            1,
            8,
            "ok",
            "soft limit 1024, hard limit 4096, enough for 1 node of 8 ranks",
        ),
        ((4000, 4096), 1948, 1, "warning", "a rank of 1948 nodes of 1 rank may need 4094"),
        ((4095, 4095), 3896, 1, "error", "a manager of 3896 nodes of 1 rank needs 4096"),
        ((1024, 4096), 64, 8, "warning", "a rank of 64 nodes of 8 ranks may need 1222"),
        ((1222, 4096), 64, 8, "ok", "enough"),
        ((NONE, NONE), 100_000, 1024, "ok", "soft limit none, hard limit none"),
        ((64, 64), 1, 1, "error", "needs 201"),
    ],
)
def test_open_files(found, nodes, ranks, state, words):
    result = limits.open_files(found, nodes, ranks)
    assert result.state == state and words in result.found
    assert (state == "ok") == (not result.remedy)


def test_open_files_are_those_of_the_manager():
    """The number stands in manager/server.py, too."""
    text = (Path(__file__).parents[2] / "taskd" / "manager" / "server.py").read_text()
    assert "allow_files(self.settings.nodes + 200)" in text


@pytest.fixture
def mounted(tmp_path) -> Iterator[Path]:
    place = tmp_path / "a memory"
    place.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)], capture_output=True
    ).returncode:
        pytest.skip("needs the right to mount")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_small_shared_memory(mounted):
    found = shared_memory.room({}, mounted)
    assert found.state == "warning" and "64 MiB free; stripes keep a copy" in found.found
    assert "TASKD_STRIPES=off" in found.remedy and "--shm-size" in found.remedy
    assert shared_memory.room({"TASKD_STRIPES": "off"}, mounted).state == "ok"
    assert list(mounted.iterdir()) == []  # nothing is left


def test_a_full_shared_memory(mounted):
    with open(mounted / "most", "wb") as most:
        os.posix_fallocate(most.fileno(), 0, 40 << 20)
    found = shared_memory.room({"TASKD_STRIPES": "off"}, mounted)
    assert found.state == "warning" and "24 MiB free, and 32 MiB are needed" in found.found
    with open(mounted / "rest", "wb", buffering=0) as rest, pytest.raises(OSError):
        while True:
            rest.write(bytes(4096))
    found = shared_memory.room({}, mounted)
    assert found.state == "warning" and "is full" in found.found


def test_a_read_only_shared_memory(mounted):
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    found = shared_memory.room({}, mounted)
    assert (
        found.state == "warning" and "cannot be written to (Read-only file system)" in found.found
    )


def test_no_shared_memory(tmp_path):
    found = shared_memory.room({}, tmp_path / "none")
    assert (
        found.state == "warning"
        and "does not exist" in found.found
        and "mount a tmpfs" in found.remedy
    )


def test_shared_memory_on_a_disk(tmp_path):
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        f"1 0 0:1 / / rw - ext4 /dev/vda rw\n2 1 0:2 / {tmp_path} rw shared:1 - overlay none rw\n"
    )
    found = shared_memory.room({}, tmp_path, mounts)
    assert found.state == "warning" and "is overlay, not tmpfs" in found.found


def test_which_mount(tmp_path):
    mounts = tmp_path / "mountinfo"
    lines = (
        ("/", "ext4"),
        ("/a", "xfs"),
        ("/a/b\\040c", "tmpfs"),
        ("/abc", "nfs"),
        ("/a", "btrfs"),
    )
    mounts.write_text("".join(f"1 0 0:1 / {point} rw - {kind} none rw\n" for point, kind in lines))
    for place, kind in {"/a/x": "btrfs", "/a/b c/d": "tmpfs", "/abc": "nfs", "/b": "ext4"}.items():
        assert shared_memory.file_system(Path(place), mounts) == kind


@pytest.mark.parametrize(
    ("mode", "state", "words"),
    [
        (0o600, "ok", ""),
        (0o640, "ok", ""),
        (0o644, "warning", "read by any user (mode 0644)"),
        (0o602, "warning", "written by any user"),
    ],
)
def test_a_secret_in_a_file(tmp_path, mode, state, words):
    path = tmp_path / "secret"
    path.write_text("word")
    path.chmod(mode)
    found = secret.secret({"TASKD_SECRET_FILE": str(path)})
    assert found.state == state and words in found.found


RANDOM = "0b6a4a4e-33a5-4f0e-9d0c-0d2f3c5a7e11"


@pytest.mark.parametrize(
    ("environ", "nodes", "state", "words"),
    [
        ({}, 1, "ok", "the job makes one for this user only, in "),
        ({}, 2, "error", "a job of 2 nodes needs a secret"),
        ({"TASKD_STANDBY": "on"}, 1, "error", "needs a secret"),
        ({"MINDX_TASK_ID": RANDOM}, 2, "ok", "a random UUID"),
        ({"TASKD_INSECURE": "1"}, 2, "warning", "keys come from the job's id"),
    ],
)
def test_no_secret(environ, nodes, state, words, tmp_path, monkeypatch):
    monkeypatch.setattr(secret_file, "SHARED", str(tmp_path))
    found = secret.secret({"MINDX_TASK_ID": "j", **environ}, nodes)
    assert found.state == state and words in found.found
    assert not list(tmp_path.iterdir()), "the doctor has changed something"
    if state == "error":
        assert "openssl rand -hex 32" in found.remedy


def test_a_directory_of_secrets_that_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(secret_file, "SHARED", str(tmp_path))
    (tmp_path / f"taskd-secrets-{os.geteuid()}").mkdir(0o755)
    found = secret.secret({"MINDX_TASK_ID": "j"})
    assert found.state == "error" and "open to other users" in found.found


@pytest.mark.parametrize(
    ("environ", "state", "words"),
    [
        ({"TASKD_SECRET": "word"}, "ok", "from TASKD_SECRET"),
        ({"TASKD_SECRET": " "}, "error", "set but empty"),
        ({"TASKD_SECRET_FILE": "/no/where"}, "error", "cannot be read: No such file or directory"),
        ({"TASKD_SECRET_FILE": "/"}, "error", "cannot be read: Is a directory"),
        ({"TASKD_SECRET_FILE": "/dev/null"}, "error", "is empty"),
    ],
)
def test_a_secret(environ, state, words):
    found = secret.secret(environ)
    assert found.state == state and words in found.found
    assert "word" not in found.found


def test_the_secret_is_not_shown():
    assert "hush" not in str(secret.secret({"TASKD_SECRET": "hush"}))


NOW = 1_800_000_000_000_000_000  # ns; in 2027


def test_clocks():
    here = os.sched_getaffinity(0)
    assert clock.goes_forward().state == "ok"
    assert os.sched_getaffinity(0) == here
    assert (
        clock.goes_forward(itertools.count().__next__, itertools.count(NOW).__next__).state == "ok"
    )
    # a coarse one stands still for a while
    assert clock.goes_forward(lambda: 7, lambda: NOW).state == "ok"


def test_clocks_that_go_back():
    readings = itertools.chain(range(100), range(50, 10**9))
    found = clock.goes_forward(readings.__next__, lambda: NOW)
    assert found.state == "error" and "by 49 ns" in found.found
    readings = itertools.chain(range(NOW, NOW + 100), range(NOW, NOW + 10**9))
    found = clock.goes_forward(itertools.count().__next__, readings.__next__)
    assert found.state == "warning" and "went back by 99 ns" in found.found


@pytest.mark.parametrize("year", [1970, 2150])
def test_a_clock_that_was_not_set(year):
    found = clock.goes_forward(wall=lambda: int((year - 1970) * 365.25 * 86400e9) + 86400 * 10**10)
    assert found.state == "warning" and f"the year {year}" in found.found


@pytest.mark.parametrize(
    ("source", "state"),
    [
        ("tsc", "ok"),
        ("kvm-clock", "ok"),
        ("arch_sys_counter", "ok"),
        ("hpet", "warning"),
        ("jiffies", "warning"),
    ],
)
def test_clock_source(tmp_path, source, state):
    path = tmp_path / "current_clocksource"
    path.write_text(source + "\n")
    found = clock.source(path)
    assert found.state == state and source in found.found


def test_no_clock_source(tmp_path):
    assert clock.source(tmp_path / "none").state == "ok"


def forbidden(*_):
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (kernel.pidfd, "error"),
        (kernel.eventfd, "error"),
        (kernel.memfd, "warning"),
        (kernel.userfaultfd, "warning"),
    ],
)
def test_what_a_container_forbids(check, state):
    before = set(os.listdir("/proc/self/fd"))
    found = check(forbidden)
    assert (
        found.state == state
        and "Operation not permitted" in found.found
        and "seccomp" in found.remedy
    )
    assert check().state in ("ok", "warning")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_kernel_without_poison():
    found = kernel.userfaultfd(lambda: os.open("/dev/null", os.O_RDONLY), lambda _: 0)
    assert found.state == "warning" and "no UFFDIO_POISON" in found.found and "6.6" in found.remedy


def test_what_is_no_userfaultfd():
    found = kernel.userfaultfd(lambda: os.open("/dev/null", os.O_RDONLY))
    assert found.state == "warning" and "its features cannot be read" in found.found


def test_userfaultfd_agrees_with_libtaskd():
    memory = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        poison.page(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        works = True
    except OSError:
        works = False
    assert (kernel.userfaultfd().state == "ok") == works


def test_namespaces():
    here = os.readlink("/proc/self/ns/net")
    assert kernel.namespaces(dict(os.environ)).state in ("ok", "warning")
    assert os.readlink("/proc/self/ns/net") == here
