"""What is looked at on the machine: limits, shared memory, pidfd, and who may read the secret."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.cli.doctor import machine
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
    result = machine.open_files(found, nodes, ranks)
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


def test_a_containers_shared_memory(mounted):
    found = machine.shared_directory(mounted)
    assert found.state == "ok" and "64 MiB free; records need no room there" in found.found
    assert list(mounted.iterdir()) == []  # nothing is left


def test_a_full_shared_memory(mounted):
    with open(mounted / "most", "wb") as most:
        os.posix_fallocate(most.fileno(), 0, 60 << 20)
    found = machine.shared_directory(mounted)
    assert found.state == "warning" and "4 MiB free, and 8 MiB are needed" in found.found
    with open(mounted / "rest", "wb", buffering=0) as rest, pytest.raises(OSError):
        while True:
            rest.write(bytes(4096))
    found = machine.shared_directory(mounted)
    assert found.state == "warning" and "is full" in found.found


def test_the_memory_of_a_container(tmp_path):
    group = tmp_path / "sys/fs/cgroup/a/b"
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    (group / "memory.max").write_text(f"{1 << 30}\n")
    (group / "memory.current").write_text(f"{700 << 20}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {100 << 20}\n")
    found = machine.memory({}, None, tmp_path)
    assert found.state == "ok" and "has 424 MiB of 1.0 GiB free" in found.found
    assert "of 196 MiB a node" in found.found
    assert machine.memory({}, 196 << 20, tmp_path).state == "ok"
    found = machine.memory({}, 200 << 20, tmp_path)
    assert found.state == "warning" and "it takes 400 MiB, and the container" in found.found
    assert "TASKD_STRIPES=off" in found.remedy and "--memory" in found.remedy
    assert machine.memory({"TASKD_STRIPES": "off"}, 200 << 20, tmp_path).state == "ok"


def test_a_read_only_shared_memory(mounted):
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    found = machine.shared_directory(mounted)
    assert found.state == "warning"
    assert "cannot be written to (Read-only file system)" in found.found


def test_no_shared_memory(tmp_path):
    found = machine.shared_directory(tmp_path / "none")
    assert found.state == "warning"
    assert "does not exist" in found.found
    assert "mount a tmpfs" in found.remedy


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
    found = machine.secret({"TASKD_SECRET_FILE": str(path)})
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
    found = machine.secret({"MINDX_TASK_ID": "j", **environ}, nodes)
    assert found.state == state and words in found.found
    assert not list(tmp_path.iterdir()), "the doctor has changed something"
    if state == "error":
        assert "openssl rand -hex 32" in found.remedy


def test_a_directory_of_secrets_that_cannot_be_used(tmp_path, monkeypatch):
    monkeypatch.setattr(secret_file, "SHARED", str(tmp_path))
    (tmp_path / f"taskd-secrets-{os.geteuid()}").mkdir(0o755)
    found = machine.secret({"MINDX_TASK_ID": "j"})
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
    found = machine.secret(environ)
    assert found.state == state and words in found.found
    assert "word" not in str(found)


def test_a_container_that_forbids_pidfd():
    def forbidden(_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    found = machine.pidfd(forbidden)
    assert found.state == "error" and "Operation not permitted" in found.found
    assert "seccomp" in found.remedy
    before = len(os.listdir("/proc/self/fd"))
    assert machine.pidfd().state == "ok" and len(os.listdir("/proc/self/fd")) == before
