"""Files, owners, disks and others that patching torch's run.py must cope with, or refuse."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from taskd.adaptor import patching, run_py
from tests.adaptor.torch_copies import FAKE, call, names, run_file

pytestmark = pytest.mark.usefixtures("importable")
LIMIT = 240


@pytest.mark.parametrize("action", ["--install", "--remove", "--status"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not torchrun"),
        (b"import os\n", "it is not torchrun: it defines no main() and no run()"),
        (FAKE.replace(b"\n", b"\r\n", 1), "end in different ways"),
        (FAKE + b"import taskd\n", "neither `taskd patch` nor the documented sed"),
        (FAKE + b"(", "not valid Python"),
        (FAKE + b"#" * patching.MAX_BYTES, "torchrun has less than"),
        (None, "it cannot be read: No such file or directory"),
    ],
)
def test_refused(fake, action, content, words):
    file = run_file(fake)
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    done = call(fake, action)
    assert done.exit_code == 2, done.output
    assert words in done.output or (action == "--status" and "no `import os`" in done.output)
    assert content is None or file.read_bytes() == content


def test_links_are_refused(fake, tmp_path):
    file = run_file(fake)
    file.rename(tmp_path / "elsewhere.py")
    file.symlink_to(tmp_path / "elsewhere.py")
    done = call(fake, "--install")
    assert done.exit_code == 2 and f"it is a link to {tmp_path / 'elsewhere.py'}" in done.output
    assert (tmp_path / "elsewhere.py").read_bytes() == FAKE


def test_a_site_that_is_reached_by_a_link_is_not(fake, tmp_path):
    (tmp_path / "lib64").symlink_to(fake)
    assert patching.status(run_file(tmp_path / "lib64")).state == "not installed"


def test_what_is_no_file(fake):
    file = run_file(fake)
    file.unlink()
    os.mkfifo(file)
    done = call(fake, "--status")
    assert done.exit_code == 2 and "it is not a file" in done.output


def test_one_that_is_hard_linked_is_changed_here_only(fake, tmp_path):
    """As installers do that share files between environments."""
    os.link(run_file(fake), tmp_path / "cache.py")
    file = run_file(fake)
    file.write_bytes(run_py.installed(FAKE))
    patching.remove(file)
    assert file.read_bytes() == FAKE
    assert (tmp_path / "cache.py").read_bytes() == run_py.installed(FAKE)


@pytest.mark.parametrize("content", [FAKE, run_py.installed(FAKE)])
def test_read_only(fake, content):
    file = run_file(fake)
    file.write_bytes(content)
    file.chmod(0o444)
    done = call(fake, "--install" if content == FAKE else "--remove")
    assert done.exit_code == 2 and "it is read-only (mode 0444)" in done.output
    assert file.read_bytes() == content and names(fake) == {"run.py"}


def test_of_another_user():
    """The directory may not be written to."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become somebody else")
    with tempfile.TemporaryDirectory() as name:  # pytest's own directories are closed to others
        os.chmod(name, 0o755)
        file = run_file(Path(name))
        file.parent.mkdir(parents=True)
        file.write_bytes(FAKE)
        code = f"""
import os, pathlib
from taskd.adaptor import patching
os.setgid(65534); os.setuid(65534)
try:
    patching.install(pathlib.Path({str(file)!r}))
except patching.Refused as error:
    print(error)
"""
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT
        )
        assert (
            "it cannot be replaced: Permission denied: run this as the user who has installed torch"
            in done.stdout
        ), done.stderr
        assert file.read_bytes() == FAKE


def test_its_owner_stays(fake):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    file = run_file(fake)
    file.write_bytes(run_py.installed(FAKE))
    os.chown(file, 1234, 2345)
    file.chmod(0o4755)
    patching.remove(file)
    found = file.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 2345, 0o4755)


@pytest.fixture
def full(tmp_path):
    """A file system with a torch in it and no room for another run.py."""
    place = tmp_path / "full"
    place.mkdir()
    if (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(place)], capture_output=True
        ).returncode
        != 0
    ):
        pytest.skip("needs the right to mount")
    try:
        file = run_file(place)
        file.parent.mkdir(parents=True)
        file.write_bytes(FAKE)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk(full):
    for content, action in ((FAKE, "--install"), (run_py.installed(FAKE), "--remove")):
        run_file(full).write_bytes(content)
        with open(full / "rest", "wb", buffering=0) as rest, pytest.raises(OSError):
            while True:
                rest.write(bytes(512))
        done = call(full, action)
        assert (
            done.exit_code == 2 and "No space left on device: make room on that disk" in done.output
        ), done.output
        assert run_file(full).read_bytes() == content and names(full) == {"run.py"}
        (full / "rest").unlink()


def test_a_read_only_file_system(full):
    subprocess.run(["mount", "-o", "remount,ro", str(full)], check=True)
    done = call(full, "--install")
    assert (
        done.exit_code == 2
        and "Read-only file system: patch it where the image is built" in done.output
    )
    assert call(full, "--status").exit_code == 1


def test_somebody_else_who_knows_no_lock(fake, monkeypatch):
    file = run_file(fake)
    original = patching._write

    def disturbed(*arguments):
        original(*arguments)
        file.write_bytes(b"# by pip\n" + FAKE)

    monkeypatch.setattr(patching, "_write", disturbed)
    done = call(fake, "--install")
    assert done.exit_code == 2 and "another program has changed it meanwhile" in done.output
    assert file.read_bytes() == b"# by pip\n" + FAKE and names(fake) == {"run.py"}
