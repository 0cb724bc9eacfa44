"""The import in torch/distributed/run.py, as a file: verified by importing, put back when that
fails, whoever else is at it.

The torch is this Python's, as seen through a directory of links in which only run.py is a file of
its own. The installed one is never written to.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskd.adaptor import patching, run_py
from taskd.cli import main

ROOT = Path(__file__).parents[2]
LIMIT = 240
FAKE = b"import os\n\n\ndef run(args):\n    pass\n\n\ndef main(args=None):\n    pass\n"


@pytest.fixture(scope="module")
def torch() -> Path:
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0])


@pytest.fixture
def site(tmp_path, torch) -> Path:
    """A site-packages with a torch in it that works."""
    site = tmp_path / "site"
    shadow(torch, site / "torch", {"distributed"})
    shadow(torch / "distributed", site / "torch" / "distributed", {"run.py", "__pycache__"})
    source = run_py.removed((torch / "distributed" / "run.py").read_bytes())
    (site / "torch" / "distributed" / "run.py").write_bytes(source)
    return site


def shadow(original: Path, made: Path, without: set[str]) -> None:
    made.mkdir(parents=True)
    for entry in original.iterdir():
        if entry.name not in without:
            (made / entry.name).symlink_to(entry)


@pytest.fixture
def fake(tmp_path) -> Path:
    """One that does not import: for what is refused before."""
    file = tmp_path / "fake" / "torch" / "distributed" / "run.py"
    file.parent.mkdir(parents=True)
    file.write_bytes(FAKE)
    return tmp_path / "fake"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run_file(site: Path) -> Path:
    return site / "torch" / "distributed" / "run.py"


def call(site: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["patch", *arguments, "--torch", str(site)])


def names(site: Path) -> set[str]:
    return {p.name for p in run_file(site).parent.iterdir()}


def test_the_whole_life(site, torch):
    file = run_file(site)
    before, around = file.read_bytes(), names(site)
    file.chmod(0o640)
    assert call(site, "--status").exit_code == 1

    done = call(site, "--install")
    assert done.exit_code == 0 and "installed, and verified by importing it" in done.output, (
        done.output
    )
    assert file.read_bytes() == run_py.installed(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    found = call(site, "--status")
    assert found.exit_code == 0 and "installed by `taskd patch`" in found.output

    number = file.stat().st_ino
    again = call(site, "--install")
    assert again.exit_code == 0 and "installed already" in again.output
    assert file.stat().st_ino == number  # not touched

    subprocess.run(["sed", "-i", f"/import os/i {run_py.SED.decode()}", str(file)], check=True)
    assert json.loads(call(site, "--status", "--json").output) == {
        "file": str(file),
        "state": "installed",
        "ours": 1,
        "sed": 1,
    }
    gone = call(site, "--remove")
    assert (
        gone.exit_code == 0
        and "removed; it was installed by `taskd patch`, and by sed (once)" in gone.output
    )
    assert file.read_bytes() == before and names(site) - {"__pycache__"} == around
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert call(site, "--status").exit_code == 1
    assert call(site, "--remove").exit_code == 0


def test_a_directory_named_from_here(site, monkeypatch):
    monkeypatch.chdir(site.parent)
    done = call(Path(site.name), "--install")
    assert done.exit_code == 0, done.output
    assert f"{run_file(site)}: installed, and verified" in done.output


def test_compiled_files_that_python_does_not_check(site):
    """As they are made for images: `compileall --invalidation-mode unchecked-hash`."""
    file = run_file(site)
    command = [
        sys.executable,
        "-m",
        "compileall",
        "-q",
        "--invalidation-mode",
        "unchecked-hash",
        str(file),
    ]
    subprocess.run(command, check=True)
    assert call(site, "--install").exit_code == 0
    subprocess.run(command, check=True)
    assert call(site, "--remove").exit_code == 0
    code = (
        "import sys, torch.distributed.run; sys.exit('taskd.python.adaptor.patch' in sys.modules)"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{site}:{ROOT}"},
        check=True,
        cwd="/",
    )


def test_a_torch_that_does_not_import_is_put_back(fake):
    """Its torch/__init__.py is missing, so that it is another torch that is imported."""
    done = call(fake, "--install")
    assert done.exit_code == 1, done.output
    assert "another torch is imported" in done.output and "as it was before" in done.output
    assert run_file(fake).read_bytes() == FAKE and names(fake) == {"run.py"}


def broken(site: Path, text: str) -> None:
    for package in ("torch", "torch/distributed"):
        (site / package / "__init__.py").write_text("")
    (site / "torch" / "__init__.py").write_text(text)


def test_the_reason_is_torchs_own(fake):
    broken(fake, "raise ImportError('libfoo.so: not found')")
    done = call(fake, "--install")
    assert done.exit_code == 1 and "ImportError: libfoo.so: not found" in done.output
    assert run_file(fake).read_bytes() == FAKE


def test_one_that_does_not_end(fake, monkeypatch):
    broken(fake, "import time; time.sleep(600)")
    monkeypatch.setattr(patching, "IMPORT_LIMIT", 1.0)
    with pytest.raises(patching.NotVerified, match="has not ended within 1 s"):
        patching.install(run_file(fake), fake)
    assert run_file(fake).read_bytes() == FAKE


def test_one_that_was_installed_and_does_not_work_is_left(fake):
    broken(fake, "1/0")
    installed = run_py.installed(FAKE)
    run_file(fake).write_bytes(installed)
    done = call(fake, "--install")
    assert (
        done.exit_code == 1
        and "was installed before, and does not work" in done.output
        and "ZeroDivisionError" in done.output
    )
    assert run_file(fake).read_bytes() == installed


@pytest.mark.parametrize("action", ["--install", "--remove", "--status"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not torchrun"),
        (b"import os\n", "it is not torchrun: it defines no main() and no run()"),
        (FAKE.replace(b"\n", b"\r\n", 1), "end in different ways"),
        (FAKE + b"import taskd\n", "neither `taskd patch` nor the documented sed"),
        (FAKE + b"(", "not Python that parses"),
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
    assert done.exit_code == 2 and "somebody else has changed it meanwhile" in done.output
    assert file.read_bytes() == b"# by pip\n" + FAKE and names(fake) == {"run.py"}


def start(site: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        "from taskd.cli import main; main()",
        "patch",
        *arguments,
        "--torch",
        str(site),
    ]
    # Ctrl-C is ignored by what a shell starts in the background, and by everything below that
    heard = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heard,
    )


def test_two_at_once(site):
    before = run_file(site).read_bytes()
    both = [start(site, "--install") for _ in range(2)]
    said = sorted(p.communicate(timeout=LIMIT)[0] for p in both)
    assert [p.returncode for p in both] == [0, 0], said
    assert sum("installed already" in text for text in said) == 1
    assert run_file(site).read_bytes() == run_py.installed(before)


@pytest.mark.parametrize(
    ("told", "left"), [(signal.SIGINT, FAKE), (signal.SIGKILL, run_py.installed(FAKE))]
)
def test_stopped_half_way(fake, told, left):
    """While it is being imported. What can be told to stop puts the file back; what is killed
    leaves one that is whole."""
    broken(
        fake,
        f"import pathlib, time; pathlib.Path({str(fake / 'imported')!r}).touch(); time.sleep(600)",
    )
    process = start(fake, "--install")
    end = time.monotonic() + LIMIT
    while not (fake / "imported").exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.01)
    try:
        process.send_signal(told)
        process.wait(LIMIT)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what it has started to import torch
        process.communicate()
    assert run_file(fake).read_bytes() == left
    assert patching.remove(run_file(fake)).installed == (left != FAKE)
    assert run_file(fake).read_bytes() == FAKE


def test_a_rest_of_one_that_was_killed_is_no_hindrance(fake):
    file = run_file(fake)
    file.write_bytes(run_py.installed(FAKE))
    file.with_name(patching.FRESH).write_bytes(b"half of")
    patching.remove(file)
    assert file.read_bytes() == FAKE and names(fake) == {"run.py"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "say what to do: --install, --remove or --status, one of them"),
        ("--status --install", "one of them"),
        ("--install --json", "--json goes with --status"),
        ("--status --torch /no/where", "does not exist"),
    ],
)
def test_usage(arguments, words):
    done = CliRunner().invoke(main, ["patch", *arguments.split()])
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
