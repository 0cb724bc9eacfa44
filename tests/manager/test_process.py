"""The manager as a process: exit status, what it prints, and the documented manager.py."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from taskd import start
from taskd.core.settings import Settings
from taskd.manager.incoming import Incoming
from taskd.manager.limits import ManagerLimits
from taskd.messages import from_agent

ROOT = Path(__file__).resolve().parents[2]
TWO = ("--nodes", "2", "--ranks-per-node", "2")


def environment(tmp_path, **more):
    kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "VIRTUAL_ENV")}
    job = {
        "TASKD_SECRET": "the secret of the tests",
        "MINDX_TASK_ID": "job",
        "TASKD_RECOVER_STRATEGY": "retry",
    }
    found = {
        **kept,
        "PYTHONPATH": str(ROOT),
        "TASKD_LOG_PATH": str(tmp_path / "log"),
        **job,
        **more,
    }
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def manager(tmp_path, port):
    started = []

    def begin(*arguments, program=("-m", "taskd.manager"), fds=(), **more):
        command = [sys.executable, *program, *arguments]
        env = environment(tmp_path, **{"TASKD_PORT": str(port), **more})
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, pass_fds=fds
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def joined(fake_agent, port, ranks):
    agent = fake_agent(port, 0, ranks)
    agent.join()
    return agent


@pytest.mark.parametrize(("ok", "status"), [(True, 0), (False, 1)])
def test_the_exit_status_tells_how_the_job_ended(manager, fake_agent, port, ok, status):
    process = manager("--nodes", "1", "--ranks-per-node", "2")
    joined(fake_agent, port, (0, 1)).send(from_agent.AgentLeft(0, ok, "" if ok else "exit code 9"))
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
        ((*TWO, "--port", "70000"), {}, "65535"),
        (TWO, {"POD_IP": "203.0.113.7"}, "POD_IP"),
        (TWO, {"TASKD_PORT": "x"}, "TASKD_PORT"),
        (TWO, {"TASKD_RECOVER_STRATEGY": "retyr"}, "retyr"),
        (TWO, {"TASKD_SECRET": " "}, "TASKD_SECRET"),
        (TWO, {"TASKD_SECRET": None}, "a job of 2 nodes needs a secret"),
        (("--nodes", "0", "--ranks-per-node", "2"), {"TASKD_LOG_STDOUT": "False"}, "node_nums"),
    ],
)
def test_what_cannot_be_used_is_refused_with_status_2(manager, arguments, variables, word):
    process = manager(*arguments, **variables)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert word in err and "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, start.LEAVE])
def test_a_signal_ends_it_cleanly(manager, fake_agent, port, number):
    process = manager(*TWO)
    agent = fake_agent(port, 5, (0, 1))
    agent.join()
    agent.receive()  # refused: so the manager is in its loop
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (128 + number, "")
    assert "Traceback" not in err


def test_the_documented_manager_py_works_as_written(manager, fake_agent, port, tmp_path):
    process = manager(program=(str(ROOT / "examples" / "manager.py"),))
    joined(fake_agent, port, (0, 1, 2, 3)).send(from_agent.AgentLeft(0, True))
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (0, "", "")
    assert "every node ended well" in next((tmp_path / "log").glob("journal-*.jsonl")).read_text()


def test_a_label_that_is_no_longer_allowed_does_not_stop_the_next_manager(manager, tmp_path):
    (pod := tmp_path / "pod").mkdir()
    (pod / "labels").write_text('process-recover-enable="maybe"\nsubHealthyStrategy="x"')
    more = {"TASKD_POD_INFO": str(pod), "TASKD_LAUNCHER_WAIT": "1"}
    out, err = manager(*TWO, **more).communicate(timeout=60)
    assert "subHealthyStrategy='x' is refused" in err and "no launcher" not in err
    out, err = manager(*TWO, "--successor", **more).communicate(timeout=60)
    assert "process-recover-enable='maybe'" in err and "no launcher has come" in err


def test_without_launchers_it_leaves_with_the_reason(manager, fake_agent, port):
    process = manager(*TWO, TASKD_LAUNCHER_WAIT="1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (4, "", 1)
    assert "no launcher has come for 1 s (TASKD_LAUNCHER_WAIT)" in err
    # the guides' manager.py ignores what it is told; it leaves, too
    process = manager(program=(str(ROOT / "examples" / "manager.py"),), TASKD_LAUNCHER_WAIT="1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "") and "no launcher has come" in err


def test_launchers_that_have_all_come_get_the_time_to_meet():
    """They import torch and make a rendezvous: of healthy starts nothing is said."""
    now, said = [100.0], []
    members = SimpleNamespace(
        agents={}, arrived=set(), seen=set(), miss_nodes=lambda place: said.append(place)
    )
    job = SimpleNamespace(settings=Settings(2, 1), replaces=False)
    incoming = Incoming(
        *("job", SimpleNamespace(job=job, under_way=False), members, None, None),
        *(SimpleNamespace(reply=lambda *what: None), None, None, lambda: False, lambda: now[0]),
    )
    limits = ManagerLimits(meeting=60.0, next_warning=300.0)
    assert incoming.miss_nodes(("h", 1), 110.0, limits) == 410.0 and len(said) == 1, "none came"
    for node in (0, 1):
        now[0] += 5
        incoming._arrived(b"", from_agent.Arrived(node))
    assert incoming.miss_nodes(("h", 1), 111.0, limits) == 170.0 and len(said) == 1
    assert incoming.miss_nodes(("h", 1), 170.0, limits) == 470.0 and len(said) == 2


def test_it_stays_while_it_has_a_launcher_and_after_one_has_asked():
    members, now = SimpleNamespace(peers=[]), [100.0]
    out = SimpleNamespace(reply=lambda *_: None)
    job = SimpleNamespace(settings=Settings(2, 1), replaces=False)  # of the coordinator
    coordinator = SimpleNamespace(job=job, under_way=False)
    members.agents, members.arrived = {}, set()
    incoming = Incoming(
        "job", coordinator, members, None, None, out, None, None, lambda: False, lambda: now[0]
    )
    assert incoming.alone(109.9, 10) == "" and incoming.alone(110.0, 10)
    now[0] = 105.0
    incoming._arrived(b"", from_agent.Arrived(1))  # a launcher that will wait for the others
    assert members.arrived == {1}
    assert incoming.alone(114.9, 10) == "" and incoming.alone(115.0, 10)
    members.peers = ["an agent"]
    assert incoming.alone(200.0, 10) == ""
    members.peers = []
    assert incoming.alone(209.9, 10) == "" and incoming.alone(210.0, 10)
    incoming.excuse(5.0)
    assert incoming.alone(214.9, 10) == "" and incoming.alone(215.0, 10)


@pytest.fixture
def starter():
    """A process that stands for the launcher, and its pidfd."""
    process = subprocess.Popen(["sleep", "600"])
    fd = os.pidfd_open(process.pid)
    yield process, fd
    os.close(fd)
    process.kill()
    process.wait()


def registered(tmp_path, node):
    """Wait until the manager has taken the node's agent in."""
    end = time.monotonic() + 60
    while not any(
        f"node {node} joined" in path.read_text()
        for path in (tmp_path / "log").glob("manager*.log")
    ):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_ends_with_its_starter_where_no_agent_has_come(manager, starter):
    launcher, fd = starter
    heard, told = os.pipe()
    process = manager(*TWO, "--starter", str(fd), "--ready", str(told), fds=(fd, told))
    os.close(told)
    assert os.read(heard, 9) == b"1"  # it listens, and does not keep the pipe
    assert os.read(heard, 9) == b""
    os.close(heard)
    launcher.kill()
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (4, "")
    assert "Traceback" not in err


def test_one_that_cannot_start_closes_the_pipe_without_a_word(manager):
    heard, told = os.pipe()
    process = manager(*TWO, "--ready", str(told), fds=(told,), POD_IP="203.0.113.7")
    os.close(told)
    assert os.read(heard, 9) == b""
    os.close(heard)
    assert process.wait(60) == 2


def test_a_job_of_one_node_ends_with_its_launcher(manager, starter, fake_agent, port, tmp_path):
    launcher, fd = starter
    process = manager("--nodes", "1", "--ranks-per-node", "2", "--starter", str(fd), fds=(fd,))
    joined(fake_agent, port, (0, 1))
    registered(tmp_path, 0)
    launcher.kill()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "node 0 is lost: its launcher has ended" in err


def test_a_job_of_several_nodes_goes_on_without_the_launcher_of_its_manager(
    manager, starter, fake_agent, port, tmp_path
):
    launcher, fd = starter
    process = manager(*TWO, "--starter", str(fd), fds=(fd,))
    agents = [fake_agent(port, 0, (0, 1)), fake_agent(port, 1, (2, 3))]
    for agent in agents:
        agent.join()
        registered(tmp_path, agent.node)
    # sent to all processes of the job: its launcher handles that
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        process.send_signal(number)
    stranger = fake_agent(port, 5, (0, 1))
    stranger.join()
    stranger.receive()  # refused: so the manager is in its loop
    launcher.kill()
    launcher.wait()
    for agent in agents:  # it is there, and told how the job ends
        agent.send(from_agent.AgentLeft(agent.node, True))
    assert process.wait(60) == 0
