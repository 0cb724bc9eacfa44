"""All checks together: none can end or hold up the others; and the command."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskd.cli import main
from taskd.cli.doctor import examination
from taskd.cli.doctor.examination import Check, examine
from taskd.cli.doctor.finding import error, ok, warning
from taskd.settings import BadSetting

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training


def raising(problem: BaseException):
    def look():
        raise problem

    return look


def test_a_check_that_raises_is_an_error_of_its_own():
    checks = [
        Check("one", lambda: ok("one", "well")),
        Check("two", raising(ZeroDivisionError("by zero"))),
        Check("three", raising(BadSetting("TASKD_PORT", "http", "a port", "unset it"))),
        Check("four", raising(SystemExit(7))),
    ]
    found = examine(checks)
    assert [(f.name, f.state) for f in found] == [
        ("one", "ok"),
        ("two", "error"),
        ("three", "error"),
        ("four", "error"),
    ]
    assert found[1].found == "the check itself failed: ZeroDivisionError: by zero"
    assert (found[2].found, found[2].remedy) == ("TASKD_PORT='http'; allowed is a port", "unset it")
    assert all(f.remedy for f in found if f.state != "ok")


def test_a_check_that_hangs_is_an_error_of_its_own():
    never = threading.Event()
    try:
        found = examine(
            [
                Check("slow", lambda: ok("slow", str(never.wait())), 0.1),
                Check("quick", lambda: ok("quick", "")),
            ]
        )
    finally:
        never.set()
    assert found[0].state == "error" and found[0].found == "no answer within 0.1 s"
    assert found[1].state == "ok"


def test_an_interpreter_ends_though_a_check_hangs():
    code = """
import threading
from taskd.cli.doctor.examination import Check, examine
print(examine([Check("slow", threading.Event().wait, 0.1)])[0].state)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "error\n"), done.stderr


def doctor(tmp_path: Path, *arguments: str, **env: str) -> Result:
    environ = training.environment(tmp_path, **env)
    return CliRunner(env=environ).invoke(main, ["doctor", *arguments])


def test_this_machine(tmp_path):
    done = doctor(tmp_path, "--json", TASKD_SECRET="word")
    found = json.loads(done.output)
    states = {f["name"]: f["state"] for f in found["findings"]}
    assert done.exit_code == int(found["errors"] > 0)
    assert {
        "python",
        "taskd",
        "framework",
        "recovery",
        "patch",
        "libtaskd",
        "preload",
        "port",
        "open files",
        "secret",
        "gloo",
        "started by",
    } <= set(states)
    for name in (
        "python",
        "settings",
        "recovery",
        "libtaskd",
        "preload",
        "port",
        "secret",
        "pidfd",
    ):
        assert states[name] == "ok", found
    assert all(bool(f["remedy"]) == (f["state"] != "ok") for f in found["findings"])


def test_errors_are_told_by_the_exit_status(tmp_path):
    done = doctor(tmp_path, "--framework", "mindspore", TASKD_PORT="http")
    assert done.exit_code == 1 and "Traceback" not in done.output
    assert "TASKD_PORT='http'; allowed is a port from 1 to 65535" in done.output
    assert "remedy: " in done.output
    errors = int(done.output.splitlines()[-1].split()[0])
    assert errors == sum(line.startswith("error") for line in done.output.splitlines()) >= 2


def test_warnings_are_none_and_markup_is_text(tmp_path, monkeypatch):
    made = [Check("one", lambda: warning("one", "[bold]x[/nothing]", "do [this]"))]
    monkeypatch.setattr(examination, "checks", lambda *_: made)
    done = doctor(tmp_path)
    assert done.exit_code == 0
    assert "[bold]x[/nothing]" in done.output
    assert "remedy: do [this]" in done.output
    assert done.output.endswith("0 errors, 1 warning\n")
    made[0] = Check("one", lambda: error("one", "y", "z"))
    assert doctor(tmp_path).exit_code == 1


@pytest.mark.parametrize("arguments", ["--nodes 0", "--ranks-per-node x", "--framework jax", "now"])
def test_usage(tmp_path, arguments):
    assert doctor(tmp_path, *arguments.split()).exit_code == 2
