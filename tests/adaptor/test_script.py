"""What is to be started is looked for before anything is: a wrong name is refused, and nothing that
could run is."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from taskd.adaptor import script

FILES = {
    "train.py": "print('ran')",
    "folder/x": "",
    "app/__main__.py": "print('ran')",
    "package/__init__.py": "raise SystemExit('imported')",
    "package/module.py": "",
    "runs/__init__.py": "",
    "runs/__main__.py": "print('ran')",
    "space/inner/module.py": "print('ran')",
    "grows/__init__.py": "__path__.append('elsewhere')",
    "elsewhere/late.py": "print('ran')",
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-u", "missing.py"], "there is no script missing.py in "),
        (["-u", "folder"], "folder is a directory without a __main__.py"),
        (["-u", "-m", "missing"], "there is no module missing"),
        (["-u", "-m", "package.missing"], "there is no module package.missing"),
        (["-u", "-m", "train.py"], "train is no package"),
        (["-u", "-m", "package"], "the package package has no module __main__"),
        (["-u", "-m"], "names no module"),
    ],
)
def test_refused(place, arguments, words):
    assert words in script.refusal(sys.executable, tuple(arguments))


@pytest.mark.parametrize(
    "arguments",
    [
        ["-u", "train.py", "--lr", "1"],
        ["-u", "app"],
        ["-u", "-m", "runs"],
        ["-u", "-m", "space.inner.module"],
        ["-u", "-m", "grows.late"],
        ["-c", "print('ran')"],
    ],
)
def test_what_python_runs_is_not_refused(place, arguments):
    assert script.refusal(sys.executable, tuple(arguments)) == ""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.stdout == "ran\n", done.stderr


def test_a_program(place):
    assert script.refusal("sh", ("-c", "true")) == ""
    assert "no program nix-da" in script.refusal("nix-da", ())


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read anything")
def test_a_script_that_cannot_be_read(place):
    (place / "train.py").chmod(0)
    assert "chmod +r train.py" in script.refusal(sys.executable, ("-u", "train.py"))
