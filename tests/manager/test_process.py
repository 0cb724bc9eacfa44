"""The manager as a process: exit status, what it prints, and the documented manager.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from taskd.core import events as e

ROOT = Path(__file__).resolve().parents[2]


def environment(tmp_path, **more):
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    job = {"TASKD_SECRET": "the secret of the tests", "MINDX_TASK_ID": "job"}
    return {**kept, "PYTHONPATH": str(ROOT), "TASKD_LOG_PATH": str(tmp_path / "log"), **job, **more}


@pytest.fixture
def manager(tmp_path, port):
    started = []

    def begin(*arguments, program=("-m", "taskd.manager"), **more):
        command = [sys.executable, *program, *arguments]
        env = environment(tmp_path, **{"TASKD_PORT": str(port), **more})
        process = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def led(fake_agent, port, ranks):
    agent = fake_agent(port, 0, ranks)
    agent.join()
    return agent


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_tells_how_the_job_ended(manager, fake_agent, port, ok, status):
    process = manager("--nodes", "1", "--ranks-per-node", "2")
    led(fake_agent, port, (0, 1)).send(e.AgentLeft(0, ok, "" if ok else "exit code 9"))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (status, "")
    assert ("exit code 9" in err) != ok


def test_a_port_in_use_is_one_clear_line(manager, port):
    with socket.create_server(("127.0.0.1", port)):
        process = manager("--nodes", "1", "--ranks-per-node", "2")
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (3, "", 1)
    assert str(port) in err and "TASKD_PORT" in err


@pytest.mark.parametrize(
    ("arguments", "variables", "word"),
    [
        ((), {}, "--nodes"),
        (("--nodes", "0", "--ranks-per-node", "2"), {}, "node_nums"),
        (("--nodes", "2", "--ranks-per-node", "2", "--port", "70000"), {}, "65535"),
        (("--nodes", "2", "--ranks-per-node", "2"), {"POD_IP": "203.0.113.7"}, "POD_IP"),
        (("--nodes", "2", "--ranks-per-node", "2"), {"TASKD_PORT": "x"}, "TASKD_PORT"),
        (("--nodes", "2", "--ranks-per-node", "2"), {"TASKD_RECOVER_STRATEGY": "retyr"}, "retyr"),
        (("--nodes", "2", "--ranks-per-node", "2"), {"TASKD_SECRET": " "}, "TASKD_SECRET"),
        (("--nodes", "0", "--ranks-per-node", "2"), {"TASKD_LOG_STDOUT": "False"}, "node_nums"),
    ],
)
def test_what_cannot_be_used_is_refused_with_status_2(manager, arguments, variables, word):
    process = manager(*arguments, **variables)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert word in err and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(manager, fake_agent, port, number):
    process = manager("--nodes", "2", "--ranks-per-node", "2")
    agent = fake_agent(port, 5, (0, 1))
    agent.join()
    agent.receive()  # refused: so the manager is in its loop
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert "Traceback" not in err


def test_the_documented_manager_py_works_as_written(manager, fake_agent, port, tmp_path):
    process = manager(program=(str(ROOT / "examples" / "manager.py"),))
    led(fake_agent, port, (0, 1, 2, 3)).send(e.AgentLeft(0, True))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert "every node ended well" in (tmp_path / "log" / "incidents.jsonl").read_text()
