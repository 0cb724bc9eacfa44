"""The import in torch/distributed/run.py: put in, verified by importing, taken out, refused.

The torch is this Python's, as seen through a directory of links in which only run.py is a file of
its own. The installed one is never written to.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from taskd.adaptor import patching
from taskd.adaptor.patching import OURS, SED, NotPatchable, patched, read
from taskd.cli import main
from tests.adaptor.torch_copies import FAKE, broken, call, names, run_file

pytestmark = pytest.mark.usefixtures("importable")
LIMIT = 240
# the words that sed looks for at the top level, in a text, in a function and in a longer statement
SOURCE = b'''"""Use:

    import os
"""

import sys
import os
import os.path


def main():
    import os, sys


def run():
    pass
'''


def sed(source: bytes, times: int = 1) -> bytes:
    """What the documented command makes of it."""
    for _ in range(times):
        source = subprocess.run(
            ["sed", f"/import os/i {SED.decode()}"], input=source, capture_output=True, check=True
        ).stdout
    return source


@pytest.mark.parametrize("source", [SOURCE, SOURCE.replace(b"\n", b"\r\n")], ids=["LF", "CRLF"])
def test_one_line_goes_in_and_the_same_bytes_come_back(source):
    made = patched(source)
    end = b"\r\n" if b"\r" in source else b"\n"
    assert made == source.replace(end + b"import os" + end, end + OURS + end + b"import os" + end)
    assert patched(made) == made and patched(sed(made, 2)) == made
    for changed in (source, made, sed(source), sed(made, 3)):
        assert read(changed).plain == source
    assert sed(made).count(SED) == sed(source).count(SED) + 1  # it finds no words in our line


@pytest.mark.parametrize(
    ("source", "state"),
    [
        (FAKE, "not installed"),
        (patched(FAKE), "installed by `taskd patch`"),
        (sed(FAKE), "installed by sed (once)"),
        (sed(FAKE, 3), "installed by sed (3 lines)"),
        (sed(patched(FAKE)), "installed by `taskd patch`, and by sed (once)"),
    ],
)
def test_state(source, state):
    assert read(source).state == state


def test_no_line_goes_into_a_text_that_ends_where_the_import_begins():
    with pytest.raises(NotPatchable, match="no `import os` at its top level"):
        patched(FAKE.replace(b"import os", b'"""a text\n"""; import os'))


@pytest.mark.parametrize("action", ["--install", "--remove", "--status"])
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is not torchrun"),
        (b"import os\n", "it is not torchrun: it defines no main() and no run()"),
        (FAKE + b"import taskd\n", "neither `taskd patch` nor the documented sed"),
        (FAKE + b"(", "not valid Python"),
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
    assert done.exit_code == 2 and words in done.output, done.output
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


def test_one_that_is_hard_linked_is_changed_here_only(fake, tmp_path):
    """As installers do that share files between environments."""
    file = run_file(fake)
    file.write_bytes(patched(FAKE))
    os.link(file, tmp_path / "cache.py")
    patching.remove(file)
    assert file.read_bytes() == FAKE
    assert (tmp_path / "cache.py").read_bytes() == patched(FAKE)


@pytest.mark.parametrize("content", [FAKE, patched(FAKE)])
def test_read_only(fake, content):
    file = run_file(fake)
    file.write_bytes(content)
    file.chmod(0o444)
    done = call(fake, "--install" if content == FAKE else "--remove")
    assert done.exit_code == 2 and "it is read-only (mode 0444)" in done.output
    assert file.read_bytes() == content and names(fake) == {"run.py"}


def test_one_that_cannot_be_replaced_stays(fake, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    done = call(fake, "--install")
    assert done.exit_code == 2 and "cannot be replaced: No space left on device" in done.output
    assert run_file(fake).read_bytes() == FAKE and names(fake) == {"run.py"}


def test_its_owner_stays(fake):
    if os.geteuid() != 0:
        pytest.skip("needs root, to give a file away")
    file = run_file(fake)
    file.write_bytes(patched(FAKE))
    os.chown(file, 1234, 2345)
    file.chmod(0o4755)
    patching.remove(file)
    found = file.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 2345, 0o4755)


def test_the_whole_life(site):
    file = run_file(site)
    before, around = file.read_bytes(), names(site)
    file.chmod(0o640)
    assert call(site, "--status").exit_code == 1

    done = call(site, "--install")
    assert done.exit_code == 0 and "installed, and verified by importing it" in done.output, (
        done.output
    )
    assert file.read_bytes() == patched(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    found = call(site, "--status")
    assert found.exit_code == 0 and "installed by `taskd patch`" in found.output

    number = file.stat().st_ino
    again = call(site, "--install")
    assert again.exit_code == 0 and "installed already" in again.output
    assert file.stat().st_ino == number  # not touched

    subprocess.run(["sed", "-i", f"/import os/i {SED.decode()}", str(file)], check=True)
    assert json.loads(call(site, "--status", "--json").output) == {
        "file": str(file),
        "state": "installed",
        "ours": 1,
        "sed": 1,
    }
    gone = call(site, "--remove")
    assert gone.exit_code == 0
    assert "removed; it was installed by `taskd patch`, and by sed (once)" in gone.output
    assert file.read_bytes() == before and names(site) - {"__pycache__"} == around
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert call(site, "--status").exit_code == 1
    assert call(site, "--remove").exit_code == 0


def test_compiled_files_that_python_does_not_check(fake):
    """As they are made for images: `compileall --invalidation-mode unchecked-hash`."""
    file = run_file(fake)
    file.write_bytes(patched(FAKE))
    command = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    subprocess.run([sys.executable, *command, str(file)], check=True)
    assert list(file.parent.glob("__pycache__/run.*.pyc"))
    assert call(fake, "--remove").exit_code == 0
    assert not list(file.parent.glob("__pycache__/run.*.pyc"))


def test_a_torch_that_does_not_import_is_put_back(fake):
    """Its torch/__init__.py is missing, so that it is another torch that is imported."""
    done = call(fake, "--install")
    assert done.exit_code == 1, done.output
    assert "another torch is imported" in done.output and "as it was before" in done.output
    assert run_file(fake).read_bytes() == FAKE and names(fake) == {"run.py"}


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
    run_file(fake).write_bytes(patched(FAKE))
    done = call(fake, "--install")
    assert done.exit_code == 1
    assert "was already installed and does not work" in done.output
    assert "ZeroDivisionError" in done.output
    assert run_file(fake).read_bytes() == patched(FAKE)


@pytest.mark.parametrize(("told", "left"), [(signal.SIGINT, FAKE), (signal.SIGKILL, patched(FAKE))])
def test_stopped_half_way(fake, told, left):
    """While it is being imported. What can be told to stop puts the file back; what is killed
    leaves one that is whole."""
    broken(
        fake,
        f"import pathlib, time; pathlib.Path({str(fake / 'imported')!r}).touch(); time.sleep(600)",
    )
    program = "from taskd.cli import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "patch", "--install", "--torch", str(fake)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        # Ctrl-C is ignored by what a shell starts in the background, and by everything below that
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
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


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "give one of --install, --remove and --status"),
        ("--status --install", "give one of"),
        ("--install --json", "--json goes with --status"),
        ("--status --torch /no/where", "does not exist"),
    ],
)
def test_usage(arguments, words):
    done = CliRunner().invoke(main, ["patch", *arguments.split()])
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
