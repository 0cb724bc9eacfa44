"""Which of msrun's workers a zygote can fork, read off real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.adaptor.msrun.workers import _program

SCRIPT = "import time\ntime.sleep(60)\n"


@pytest.fixture
def process(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "module.py").write_text(SCRIPT)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    made = []

    def start(*command):
        with open(tmp_path / "log", "w") as log:
            made.append(
                subprocess.Popen(
                    command,
                    cwd=tmp_path,
                    env={"PATH": path, "RANK_ID": "3", "ODD": "a=b\nc"},
                    stdout=log,
                )
            )
        line = Path(f"/proc/{made[-1].pid}/cmdline")
        while not line.read_bytes():  # for a moment, inside exec
            pass
        return made[-1].pid

    yield start
    for one in made:
        one.kill()
        one.wait()


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (("python", "script.py", "a b", ""), ("script.py", "a b", "")),
        (("python", "-u", "script.py", "-u"), ("script.py", "-u")),
        (("python", "-m", "module", "7"), ("-m", "module", "7")),
        ((sys.executable, "script.py"), ("script.py",)),
    ],
)
def test_scripts_and_modules_of_this_interpreter(process, tmp_path, command, arguments):
    found = _program(process(*command), tmp_path / "log")
    assert found is not None and found.arguments == arguments
    assert found.environment["RANK_ID"] == "3" and found.environment["ODD"] == "a=b\nc"
    assert found.log == str(tmp_path / "log")


@pytest.mark.parametrize(
    "command",
    [
        ("python", "-c", SCRIPT),
        ("python", "-O", "script.py"),
        ("sleep", "60"),
        ("sh", "-c", "sleep 60; true"),
    ],
)
def test_others_are_started_by_msrun(process, tmp_path, command):
    assert _program(process(*command), tmp_path / "log") is None


def test_a_worker_without_a_log_file_is_started_by_msrun(process):
    assert _program(process("python", "script.py"), None) is None


def test_a_process_that_has_ended_cannot_be_read(tmp_path):
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(OSError):
            _program(ended.pid, tmp_path / "log")
