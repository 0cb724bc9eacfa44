"""What memory a node has for records, by the files of a machine and of control groups; and that two
ranks are not told of the same memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.records import room

MIB = 1 << 20


def machine(root: Path, free: int, groups: str = "") -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {8 << 20} kB\nMemAvailable: {free << 10} kB\n")
    (root / "proc/self/cgroup").write_text(groups)
    return root


def group(at: Path, limit: object, used: int, cache: int = 0, version: int = 2) -> None:
    at.mkdir(parents=True, exist_ok=True)
    files = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        files = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (at / files[0]).write_text(f"{limit}\n")
    (at / files[1]).write_text(f"{used}\n")
    (at / "memory.stat").write_text(f"anon 5\n{files[2]} {cache}\nslab 7\n")


def test_a_machine_without_limits(tmp_path):
    found = room.of_node(machine(tmp_path, 3000))
    assert (found.limit, found.free, found.whose) == (8 << 30, 3000 * MIB, "the machine")
    assert found.spare == (3000 - 256) * MIB


def test_the_nearest_limit_of_the_groups_above_counts(tmp_path):
    root = machine(tmp_path, 3000, "0::/pod/container\n")
    base = tmp_path / "sys/fs/cgroup"
    group(base / "pod/container", "max", 900 * MIB)
    group(base / "pod", 2048 * MIB, 1500 * MIB, 200 * MIB)
    assert room.of_node(root).free == 748 * MIB
    group(base / "pod/container", 1000 * MIB, 900 * MIB)
    assert room.of_node(root).free == 100 * MIB
    group(base / "pod/container", 800 * MIB, 900 * MIB)  # it was lowered meanwhile
    assert room.of_node(root).free == room.of_node(root).spare == 0


def test_a_container_that_sees_its_own_group_alone(tmp_path):
    """Its name may be the host's, and its files are at the top."""
    root = machine(tmp_path, 3000, "0::/kubepods/burstable/pod1/abc\n")
    group(tmp_path / "sys/fs/cgroup", 512 * MIB, 100 * MIB)
    assert room.of_node(root).free == 412 * MIB


def test_version_1(tmp_path):
    root = machine(tmp_path, 3000, "4:cpu,cpuacct:/docker/x\n9:memory:/docker/x\n0::/\n")
    base = tmp_path / "sys/fs/cgroup/memory"
    group(base, 9223372036854771712, 7000 * MIB, version=1)
    assert room.of_node(root).whose == "the machine"
    group(base / "docker/x", 512 * MIB, 200 * MIB, 50 * MIB, version=1)
    assert room.of_node(root).free == 362 * MIB


@pytest.mark.parametrize("text", ["", "x\n", "0\n", "::::\n", "a:memory\n", "0::/../../..\n"])
def test_files_that_say_nothing(tmp_path, text):
    assert room.of_node(machine(tmp_path, 3000, text)).free == 3000 * MIB
    assert room.of_node(tmp_path / "nowhere") is None


def test_what_others_are_about_to_take_is_theirs(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "of_node", lambda: room.Room(1 << 30, 500 * MIB, "the container"))
    claims = room.Claims(tmp_path)
    claims.claim(300 * MIB)
    claims.claim(400 * MIB)  # the same process again, instead
    other = "from taskd.records import room; from pathlib import Path; import sys\n"
    other += "room.of_node = lambda: room.Room(1 << 30, 500 << 20, 'the container')\n"
    other += "room.Claims(Path(sys.argv[1])).claim(int(sys.argv[2]) << 20)"

    def asks(mib: int) -> str:
        words = [sys.executable, "-c", other, str(tmp_path), str(mib)]
        return subprocess.run(words, capture_output=True, text=True, check=False).stderr

    assert "it takes 100 MiB, beside 400 MiB for others," in asks(100)
    assert asks(60) == "" and asks(60) == "", "one that is gone takes nothing any more"
    claims.claim(0)
    assert asks(460) == ""
    (tmp_path / "room").write_bytes(b"\xff\n1 x\n \n-3 4\n" + b"9" * 5000)
    assert asks(460) == ""


def test_what_cannot_be_written_down_is_asked_of_the_kernel_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "of_node", lambda: room.Room(1 << 30, 500 * MIB, "the container"))
    claims = room.Claims(tmp_path / "gone")
    claims.claim(400 * MIB)
    with pytest.raises(OSError, match="it takes 480 MiB") as refused:
        claims.claim(480 * MIB)
    assert refused.value.errno == errno.ENOMEM


def test_a_file_gets_its_memory_or_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "of_node", lambda: room.Room(64 * MIB, 10 * MIB, "the container"))
    with open(tmp_path / "file", "wb") as file:
        room.reserve(file.fileno(), tmp_path, 8 * MIB)
        assert os.fstat(file.fileno()).st_blocks * 512 == 8 * MIB
        room.reserve(file.fileno(), tmp_path, 8 * MIB)  # it has it
        with pytest.raises(OSError, match="it takes 12 MiB, and the container has 10 MiB free"):
            room.reserve(file.fileno(), tmp_path, 20 * MIB)
        assert os.fstat(file.fileno()).st_size == 8 * MIB
