"""`taskd report` as a command: which journal it reads, what it writes, what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskd.cli import main
from taskd.history import files
from tests.history.journals import END, STORY, Record


def write(directory: Path, records: list[Record], job: str = "llm-7b", age: int = 0) -> Path:
    path = files.path(directory, job, age)
    lines = [json.dumps({"time": r.time, "kind": r.kind, **r.data}) + "\n" for r in records]
    path.write_text("".join(lines))
    return path


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch, tmp_path):
    for name in ("MINDX_TASK_ID", "TASKD_LOG_PATH", "TASKD_SECRET", "TASKD_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def report(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["report", *map(str, arguments)])


def data(*arguments: object) -> dict:
    result = report(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_file_a_directory_and_the_log_path(tmp_path):
    path = write(tmp_path, [*STORY, END])
    for place in ([path], [tmp_path], ["--log-path", tmp_path]):
        assert data(*place)["job"] == "llm-7b"
    text = report(path)
    assert text.exit_code == 0 and "3 incidents" in text.output and "goodput" in text.output


def test_a_journal_in_pieces(tmp_path):
    write(tmp_path, STORY[:12], age=1)
    path = write(tmp_path, [*STORY[12:], END])
    path.write_text(path.read_text() + '{"time": 1100.0, "ki')  # torn
    result = report(tmp_path, "--json")
    assert json.loads(result.stdout)["summary"] == data(tmp_path)["summary"]
    assert len(json.loads(result.stdout)["incidents"]) == 3
    assert "1 lines of the journal are no entries" in result.stderr


def test_the_job_is_chosen(tmp_path, monkeypatch):
    other = Record("start", 5.0, {"job": "other", "nodes": 1, "ranks_per_node": 1})
    write(tmp_path, [*STORY, END])
    write(tmp_path, [other], "other")
    for job in ("llm-7b", "other"):
        monkeypatch.setenv("MINDX_TASK_ID", job)
        assert data("--log-path", tmp_path)["job"] == job
    monkeypatch.setenv("MINDX_TASK_ID", "third")
    result = report("--log-path", tmp_path)
    assert result.exit_code == 1 and "no journal of job third" in result.output


@pytest.mark.parametrize("make", ["nothing", "an empty directory", "an empty file", "no journal"])
def test_without_a_journal_the_remedy_is_said(tmp_path, make):
    place = tmp_path / "place"
    if make == "an empty directory":
        place.mkdir()
    elif make != "nothing":
        place.write_text("" if make == "an empty file" else "hello\n")
    result = report(place)
    assert result.exit_code == 1 and "Traceback" not in result.output
    for part in (f"there is no journal in {place}", "journal-JOB.jsonl", "--log-path"):
        assert part in result.output


def test_the_page_and_the_trace(tmp_path):
    write(tmp_path, [*STORY, END])
    page, trace = tmp_path / "report.html", tmp_path / "trace.json"
    page.write_text("of before")
    result = report(tmp_path, "--html", page, "--trace", trace)
    assert result.exit_code == 0 and str(page) in result.output and str(trace) in result.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert json.loads(trace.read_text())["traceEvents"]
    # nothing else was left there
    assert {p.suffix for p in tmp_path.iterdir()} == {".html", ".json", ".jsonl"}
    # what is printed is JSON alone
    assert json.loads(report(tmp_path, "--html", page, "--json").stdout)["ranks"] == 6


def test_a_place_that_cannot_be_written(tmp_path):
    write(tmp_path, [*STORY, END])
    result = report(tmp_path, "--html", tmp_path / "missing" / "report.html")
    assert result.exit_code == 1 and "report.html cannot be written" in result.output


@pytest.mark.parametrize(
    ("given", "every", "unit"),
    [
        ("40", 40, "steps"),
        ("30min", 1800, "seconds"),
        ("90s", 90, "seconds"),
        ("1.5h", 5400, "seconds"),
    ],
)
def test_how_often_checkpoints_are_saved(tmp_path, given, every, unit):
    write(tmp_path, [*STORY, END])
    told = data(tmp_path, "--checkpoint-every", given, "--restart-seconds", 60)
    restart = told["restart_from_checkpoint"]
    assert (restart["checkpoint_every"], restart["checkpoint_unit"]) == (every, unit)
    assert (restart["restart_seconds"], restart["restart_measured"]) == (60, False)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--checkpoint-every", "0"),
        ("--checkpoint-every", "1.5"),
        ("--checkpoint-every", "-3"),
        ("--checkpoint-every", "10 days"),
        ("--restart-seconds", "-1"),
        ("--restart-seconds", "nan"),
        ("--restart-seconds", "soon"),
    ],
)
def test_bad_assumptions_are_refused(tmp_path, option, value):
    write(tmp_path, STORY)
    result = report(tmp_path, option, value)
    assert result.exit_code == 2 and repr(value) in result.output
