"""`taskd status` where there is no manager: the journal, its exit statuses, and what is not there.
A real job is in tests/recovery/test_status.py."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskd.cli import main

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training

START = {"time": 1.0, "kind": "start", "job": "j", "nodes": 1, "ranks_per_node": 4}
INCIDENT = {
    "time": 2.0, "kind": "incident", "incident": 1, "result": "repaired",
    "strategy": "recover-in-place", "faults": ["rank 3: killed by [SIGKILL]"], "ranks": [3],
    "step": 77, "reached": 77, "seconds": 0.08, "phases": {"DETECT": 0.0, "INTERRUPT": 0.005},
    "began": 1.0,
}  # fmt: skip
END = {"time": 3.0, "kind": "end", "ok": True, "reason": "every node ended well"}


def write(directory: Path, *lines: dict | str, job: str = "j") -> Path:
    path = directory / f"journal-{job}.jsonl"
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(text + "\n" for text in texts))
    return path


def status(directory: Path, *arguments: str, **env: str | None) -> Result:
    found = training.environment(directory, TASKD_LOG_PATH=str(directory), **env)
    return CliRunner(env={**found, "COLUMNS": "200"}).invoke(main, ["status", *arguments])


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ((START, INCIDENT, END), 0),
        ((START, INCIDENT, {**END, "ok": False}), 3),
        ((START, {**END, "ok": False, "ending": "failed"}), 3),
        ((START, {**END, "ok": False, "ending": "saved"}), 75),
        ((START, {**END, "ok": False, "ending": "useless"}), 93),
        ((START, INCIDENT), 4),
    ],
)
def test_the_exit_status_says_how_the_job_is(tmp_path, lines, code):
    path = write(tmp_path, *lines)
    for arguments in ((str(path),), (str(tmp_path),), ("--json", str(path))):
        done = status(tmp_path, *arguments)
        assert done.exit_code == code, done.output


def test_lines(tmp_path):
    write(tmp_path, START, INCIDENT, END)
    done = status(tmp_path, "--once", MINDX_TASK_ID="j")
    assert done.exit_code == 0, done.output
    for words in (
        "recover-in-place",
        "[SIGKILL]",
        "80.0",
        "5.0",
        "ended well: every node",
        "4 ranks",
    ):
        assert words in done.output


def test_ranks_that_are_away(tmp_path):
    """By the journal; tests/manager/test_elastic.py has what a manager answers."""
    shrunk = {"time": 2.5, "kind": "elastic", "ranks": 3, "of": 4, "away": [[3, 3, 1]], "shares": 2}
    path = str(write(tmp_path, START, {"time": 1.5, "kind": "protected", "generation": 1}, shrunk))
    assert "shrunk: 3 of 4 ranks train since " in status(tmp_path, "--once", path).stdout
    told = json.loads(status(tmp_path, "--json", path).stdout)["shrunk"]
    assert (told["ranks"], told["since"], told["away"]) == (3, 2.5, [[3, 3, 1]])
    write(tmp_path, START, shrunk, END)
    assert "shrunk" not in status(tmp_path, "--once", path).stdout
    assert json.loads(status(tmp_path, "--json", path).stdout)["shrunk"] is None


def test_the_job_that_is_named_and_otherwise_the_last_one(tmp_path):
    write(tmp_path, {**START, "job": "a"}, END, job="a")
    later = write(tmp_path, {**START, "job": "b"}, END, job="b")
    os.utime(tmp_path / "journal-a.jsonl", (1, 1))
    for arguments, named, job in (((), "a", "a"), ((), None, "b"), ((str(later),), "a", "b")):
        done = status(tmp_path, "--json", *arguments, MINDX_TASK_ID=named)
        assert json.loads(done.stdout)["job"] == job


def test_damaged_lines_are_left_out_and_counted(tmp_path):
    path = write(tmp_path, START, INCIDENT, "{", "[]", '{"kind": "incident"}')
    done = status(tmp_path, str(path), "--json")
    assert done.stderr == "3 lines of the journal are no entries and are skipped\n"
    assert len(json.loads(done.stdout)["incidents"]) == 1


def test_older_files_are_read_first(tmp_path):
    write(tmp_path, INCIDENT, job="j.1")
    write(tmp_path, {**START, "repeated": True}, END)
    assert len(json.loads(status(tmp_path, "--json", str(tmp_path)).stdout)["incidents"]) == 1


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--once",)])
def test_nothing_is_known(tmp_path, arguments):
    done = status(tmp_path, *arguments)
    assert done.exit_code == 1 and "no manager of your job answers" in done.output
    assert "--log-path" in done.output


def test_what_cannot_be_read(tmp_path):
    done = status(tmp_path, str(tmp_path / "nowhere.jsonl"))
    assert done.exit_code == 1 and "nowhere.jsonl" in done.output


@pytest.mark.parametrize("env", [{"TASKD_PORT": "http"}, {"TASKD_MANAGER_ADDR": "a b"}])
def test_bad_settings(tmp_path, env):
    done = status(tmp_path, "--once", **env)
    assert done.exit_code == 2 and next(iter(env)) in done.output
