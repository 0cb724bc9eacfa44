"""What a value names is looked at when a job starts: what cannot become right is refused, what may
come later is a notice. A name like taskd's that is not known is a notice too."""

from __future__ import annotations

import pytest

from taskd import settings
from taskd.settings import here, unknown


@pytest.fixture
def place(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("TASKD_DUMP_PATH", "file/dumps", "file is no directory: name another directory"),
        ("TASKD_LOG_PATH", "file", "allowed is a directory that this user can make or write to"),
        ("TASKD_FAULT_CONFIG", "file", "file is no directory"),
        ("TASKD_DEVICE_INFO", "./file", "file is no directory"),
        ("TASKD_RESUME_PATH", "missing", "missing does not exist here"),
        ("TASKD_RESUME_PATH", "file", "file is no directory"),
        ("TASKD_SECRET_FILE", "missing", "missing does not exist here"),
        ("TASKD_CLUSTERD_CA", "folder", "folder is a directory"),
        ("TASKD_PROFILING_SWITCH", "folder", "folder is a directory"),
        ("TASKD_NOTIFY", "exec:PLACE/missing", "missing does not exist here"),
        ("TASKD_NOTIFY", "https://h/x exec:PLACE/file", "not a program that this user can run"),
        ("POD_IP", "my-host", "allowed is an IP address"),
        ("MASTER_ADDR", "node0:29500", "allowed is a host's name or address"),
        ("TASKD_MANAGER_ADDR", "node 0", "allowed is HOST, HOST:PORT"),
    ],
)
def test_what_cannot_become_right_is_refused(place, monkeypatch, name, text, words):
    monkeypatch.chdir(place)
    text = text.replace("PLACE", str(place))
    (refused,) = settings.examine({name: text}).refused
    assert refused.name == name and words in str(refused)
    assert settings.PARAMETERS[name].secret == ("(not shown)" in str(refused))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TASKD_FAULT_CONFIG", "missing"),
        ("TASKD_POD_INFO", "missing"),
        ("TASKD_MANAGER_ADDR", "no-such-host.invalid:9601"),
        ("MASTER_ADDR", "no-such-host.invalid"),
    ],
)
def test_what_may_come_later_is_a_notice(place, monkeypatch, name, text):
    monkeypatch.chdir(place)
    found = settings.examine({name: text})
    assert found.refused == () and found.notices[0].startswith(f"{name}='{text}': "), found
    assert settings.examine({name: text}, starting=False).notices == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("TASKD_DUMP_PATH", "new/and/newer"),
        ("TASKD_LOG_PATH", "folder"),
        ("TASKD_RESUME_PATH", "auto"),
        ("TASKD_RESUME_PATH", "folder"),
        ("TASKD_PROFILING_SWITCH", "missing"),
        ("TASKD_NOTIFY", "exec:PLACE/program"),
        ("MASTER_ADDR", "localhost"),
        ("MASTER_ADDR", "fd00::1"),
        ("TASKD_MANAGER_ADDR", "[fd00::1]:9601"),
        ("TASKD_METRICS_PORT", "0.0.0.0:9100"),
        ("POD_IP", "fe80::1%eth0"),
    ],
)
def test_nothing_is_wrong(place, monkeypatch, name, text):
    monkeypatch.chdir(place)
    found = settings.examine({name: text.replace("PLACE", str(place))})
    assert (found.refused, found.notices) == ((), ())


def test_the_default_directory_is_not_looked_at(place, monkeypatch):
    """A job in a directory that it cannot write to trains; only what was asked for is refused."""
    monkeypatch.chdir(place)
    (place / "taskd_dump").write_text("")
    assert settings.examine({"TASKD_DUMP_PATH": str(place / "taskd_dump")}).refused == ()


def test_a_name_server_is_not_waited_for(monkeypatch):
    import threading

    stuck = threading.Event()
    monkeypatch.setattr(here, "LOOK_UP", 0.01)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [stuck.wait(60.0)])
    assert here.leads("stuck.invalid").never is False
    stuck.set()


def test_misspelled_names():
    near, far = (f"TASKD_{name}" for name in ("HANG_LIMT", "ZZZ_QQQ"))
    given = {near: "3", far: "1", "TASKD_AGENT": "x", "TASK_PORT": "1"}
    assert settings.examine(given).notices == (
        f"{near} is not known, and ignored: did you mean TASKD_HANG_LIMIT?",
        f"{far} is not known, and ignored: taskd env --list has all",
    )
    assert unknown.nearest("statsu", ("run", "status")) == "status"
