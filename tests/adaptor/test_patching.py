"""The import in torch/distributed/run.py, as a file: verified by importing, put back when that
fails, whoever else is at it.

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
from pathlib import Path

import pytest
from click.testing import CliRunner

from taskd.adaptor import patching, run_py
from taskd.cli import main
from tests.adaptor.torch_copies import FAKE, broken, call, names, run_file

pytestmark = pytest.mark.usefixtures("importable")
ROOT = Path(__file__).parents[2]
LIMIT = 240


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
        and "was already installed and does not work" in done.output
        and "ZeroDivisionError" in done.output
    )
    assert run_file(fake).read_bytes() == installed


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
        ("", "give one of --install, --remove and --status"),
        ("--status --install", "give one of"),
        ("--install --json", "--json goes with --status"),
        ("--status --torch /no/where", "does not exist"),
    ],
)
def test_usage(arguments, words):
    done = CliRunner().invoke(main, ["patch", *arguments.split()])
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output
