"""`taskd pause`, `taskd continue`, `taskd inject`: what they say where there is nothing to do it
to. What they do is in tests/recovery."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from taskd.cli import main
from taskd.control import Control, ControlError

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training


def call(tmp_path: Path, *arguments: str, **env: str) -> Result:
    return CliRunner(env=training.environment(tmp_path, **env)).invoke(main, arguments)


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        ("inject memory", {}, "Missing option '--rank'"),
        ("inject memory --rank one", {}, "'one' is not a list of different ranks such as 1,3"),
        ("inject memory --rank -1", {}, "'-1' is not a list of different ranks"),
        ("inject memory --ranks 1,1", {}, "'1,1' is not a list of different ranks"),
        (
            "inject memory --rank 1 --where nowhere",
            {},
            "'nowhere' is not one of 'parameter', 'optimizer', 'buffer'",
        ),
        ("inject memory --rank 1 --page -1", {}, "-1 is not in the range x>=0"),
        ("inject link", {}, "Missing option '--ranks'"),
        ("inject link --ranks 1", {}, "--ranks names the two ends of a link: --ranks 1,3"),
        ("inject link --ranks 1,2,3", {}, "--ranks names the two ends of a link: --ranks 1,3"),
        ("inject link --ranks 1,2 --how burn", {}, "'burn' is not one of 'cut', 'drop'"),
        ("inject flood --rank 1", {}, "there is no command taskd inject flood"),
        ("pause --timeout 0", {}, "0.0 is not in the range x>0"),
        ("pause now", {}, "unexpected extra argument"),
        ("pause", {"TASKD_PORT": "http"}, "TASKD_PORT='http' is refused"),
        ("continue", {"TASKD_MANAGER_ADDR": "a b"}, "TASKD_MANAGER_ADDR='a b' is refused"),
        ("inject memory --rank 1", {"TASKD_SECRET": " "}, "TASKD_SECRET is set but empty"),
    ],
)
def test_bad_arguments(tmp_path, arguments, env, words):
    done = call(tmp_path, *arguments.split(), **env)
    assert done.exit_code == 2 and words in " ".join(done.output.split()), done.output


def test_no_manager(tmp_path):
    env = training.environment(tmp_path)
    remedy = (
        f"no manager of this job answers at 127.0.0.1:{env['TASKD_PORT']}: set TASKD_MANAGER_ADDR"
    )
    done = CliRunner(env=env).invoke(main, ["pause", "--timeout", "0.2"])
    assert done.exit_code == 1 and remedy in done.output, done.output
    with Control(env) as control:
        with pytest.raises(ControlError, match=remedy):
            control.resume(0.2)
        with pytest.raises(ControlError, match=remedy):
            control.inject(0, "memory", {}, 0.2)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda control: control.inject(-1, "memory", {}), "Inject.rank: -1: Expected `int` >= 0"),
        (lambda control: control.report_code(-1, "80E01801"), "ReportCode.rank: -1"),
        (lambda control: control.sub_healthy(0, "x" * 65_537), "NodeSubHealthy.why"),
        (lambda control: control.inject(1, "memory", {"pages": 3}), "Inject.options"),
    ],
    ids=["inject", "code", "sub-healthy", "options"],
)
def test_what_no_manager_could_read_is_refused_before_it_is_sent(tmp_path, ask, words):
    with (
        Control(training.environment(tmp_path)) as control,
        pytest.raises(ControlError, match=words),
    ):
        ask(control)


def test_a_manager_with_another_secret(tmp_path):
    env = training.environment(tmp_path)
    command = [sys.executable, "-m", "taskd.manager", "--nodes", "1", "--ranks-per-node", "1"]
    manager = subprocess.Popen(
        command,
        env={**env, "TASKD_SECRET": "another"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        with Control({**env, "TASKD_SECRET": "another"}) as control:  # which is when it listens
            assert control.resume() == "the ranks continue"
        done = CliRunner(env=env).invoke(main, ["pause", "--timeout", "0.5"])
    finally:
        manager.terminate()
        manager.wait()
    assert done.exit_code == 1 and "has another key: set TASKD_SECRET" in done.output, done.output
    assert "no manager of this job answers" not in done.output


def journal(tmp_path: Path, name: str, port: int, *more: dict[str, object]) -> None:
    start = {"kind": "start", "time": 1.0, "job": name, "port": port, "nodes": 1, "version": 1}
    (tmp_path / "log").mkdir(exist_ok=True)
    path = tmp_path / "log" / f"journal-{name}.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in (start, *more)))


def test_a_job_that_has_ended_is_not_waited_for(tmp_path):
    """Its journal says how it ended; not if it is that of a job on another port, or if the job was
    started again since and has not ended."""
    env = training.environment(tmp_path)
    port = int(env["TASKD_PORT"])
    end = {"kind": "end", "time": 2.0, "ok": True, "reason": "every node ended well"}
    again = {"kind": "start", "time": 3.0, "port": port}
    for named, entries, over in (
        (port, (end,), True),
        (port + 1, (end,), False),
        (port, (end, again), False),
        (port, (), False),
    ):
        journal(tmp_path, env["MINDX_TASK_ID"], named, *entries)
        done = CliRunner(env=env).invoke(main, ["pause", "--timeout", "0.2"])
        assert done.exit_code == 1, done.output
        assert ("ended at 1970-01-01" in done.output) is over, done.output
        assert ("every node ended well" in done.output) is over, done.output


@pytest.mark.parametrize("command", ["status", "report"])
def test_the_journal_of_a_job_on_another_port_is_not_shown(tmp_path, command):
    env: dict[str, str | None] = {**training.environment(tmp_path), "MINDX_TASK_ID": None}
    port = int(env["TASKD_PORT"] or 0)
    progress = {"kind": "progress", "time": 2.0, "step": 3, "highest": 3, "total": 9}
    journal(tmp_path, "mine", port, progress)
    journal(tmp_path, "other", port + 1, progress)
    os.utime(tmp_path / "log" / "journal-mine.jsonl", (1.0, 1.0))
    for asked, shown in ((port, "mine"), (port + 1, "other")):
        done = CliRunner(env=env).invoke(main, [command, "--port", str(asked)])
        assert done.exit_code in (0, 4) and shown in done.output, done.output
    done = CliRunner(env=env).invoke(main, [command, "--port", str(port + 2)])
    assert done.exit_code == 1 and "there is no journal" in done.output, done.output
