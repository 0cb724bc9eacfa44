"""The ten documented functions: what they take, what they refuse, what they return."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from taskd import api, logs
from taskd.api import taskd_agent_api, taskd_manager_api, taskd_worker_api


@pytest.fixture(autouse=True)
def _fresh(monkeypatch, tmp_path):
    for module, name, value in (
        (taskd_manager_api, "_manager", None),
        (taskd_worker_api, "_worker", None),
        (taskd_agent_api, "_agent", None),
        (taskd_agent_api, "_operators", {}),
    ):
        monkeypatch.setattr(module, name, value)
    for name in ("TASKD_SLOT", "TASKD_PAGE"):
        monkeypatch.delenv(name, raising=False)
    # no files, and caplog sees the lines
    monkeypatch.setattr(logs, "setup", lambda name: logging.getLogger("taskd"))


def test_nothing_heavy_is_imported():
    code = (
        "import sys, taskd.api; print([m for m in ('torch', 'zmq', 'numpy') if m in sys.modules])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
        == "[]\n"
    )


def test_the_ten():
    assert len(api.__all__) == 10
    assert all(callable(getattr(api, name)) and getattr(api, name).__doc__ for name in api.__all__)


def test_manager(caplog):
    assert api.start_taskd_manager() is False
    assert "init_taskd_manager first" in caplog.text
    assert api.init_taskd_manager({"job_id": "j", "node_nums": "2", "proc": 1}) is False
    assert sum("init_taskd_manager: config key" in r.message for r in caplog.records) == 3
    assert api.start_taskd_manager() is False
    assert api.init_taskd_manager({"job_id": "j", "node_nums": 1, "proc_per_node": 1}) is True


def test_a_port_in_use_is_told(caplog, port, monkeypatch):
    import socket

    monkeypatch.setenv("TASKD_PORT", str(port))
    monkeypatch.delenv("POD_IP", raising=False)
    assert api.init_taskd_manager({"job_id": "j", "node_nums": 1, "proc_per_node": 1})
    with socket.create_server(("127.0.0.1", port)):
        assert api.start_taskd_manager() is False
    assert f"port {port}" in caplog.text


@pytest.mark.parametrize(
    "arguments",
    [("0",), (-1,), (True,), (None,), (0, -1), (0, "5"), (0, 5000, "tf"), (0, 5000, None)],
)
def test_a_worker_is_refused(arguments, caplog):
    assert api.init_taskd_worker(*arguments) is False
    assert "allowed is" in caplog.text
    assert api.start_taskd_worker() is False


def test_a_worker():
    assert api.start_taskd_worker() is False
    assert api.destroy_taskd_worker() is False
    assert api.init_taskd_worker(3, 5000, "pt") is True
    assert api.init_taskd_worker(rank_id=0, upper_limit_of_disk_in_mb=0, framework="ms") is True
    assert api.start_taskd_worker() is True
    assert api.destroy_taskd_worker() is True
    assert api.destroy_taskd_worker() is False


def test_where_taskd_answers_otherwise_than_the_original():
    """The table of docs/mindcluster.md."""
    assert api.init_taskd_manager({}) is False
    assert api.init_taskd_proxy({"UpstreamAddr": "nobody.invalid"}) is True
    assert api.register_func("MONITOR", print) is True
    config = {"Framework": "PyTorch", "UpstreamPort": 9601}
    assert api.init_taskd_agent(config, Launcher()) is True
    assert api.init_taskd_worker(-1) is False and api.start_taskd_worker() is False


def test_a_worker_with_a_bad_slot(monkeypatch, caplog):
    monkeypatch.setenv("TASKD_SLOT", "x")
    monkeypatch.setenv("TASKD_PAGE", "/nonexistent")
    assert api.init_taskd_worker(0) is False
    assert "TASKD_SLOT='x'" in caplog.text


class Launcher:
    def run(self):
        return "the result"


def test_an_agent(caplog):
    assert api.start_taskd_agent() is None
    assert "init_taskd_agent first" in caplog.text
    assert api.init_taskd_agent() is False  # PyTorch needs the launcher's agent
    config = {
        "Framework": "PyTorch",
        "UpstreamAddr": "127.0.0.1",
        "UpstreamPort": "9602",
        "ServerRank": "0",
    }
    assert api.init_taskd_agent(config, Launcher()) is True
    assert api.start_taskd_agent() == "the result"
    assert api.init_taskd_agent({"Framework": "MindSpore"}) is True
    with pytest.raises(SystemExit, match="msrun has not registered KILL_WORKER, START_ALL_WORKER"):
        api.start_taskd_agent()


@pytest.mark.parametrize(
    "config",
    [
        {"Framework": "pytorch"},
        {"UpstreamPort": "0"},
        {"UpstreamPort": "x"},
        {"ServerRank": "-1"},
        {"UpstreamAddr": ""},
        None,
    ],
)
def test_an_agent_is_refused(config, caplog):
    assert api.init_taskd_agent(config, Launcher()) is False
    assert caplog.records


@pytest.mark.parametrize(
    "operator", ["KILL_WORKER", "START_ALL_WORKER", "MONITOR", "RESTART", "START_WORKER_LIST"]
)
def test_operators(operator):
    assert api.register_func(operator, lambda: None) is True
    assert api.register_func(operator, None) is False
    assert api.register_func(operator.lower(), print) is False
    assert api.register_func(None, print) is False


def test_a_proxy(caplog):
    with caplog.at_level(logging.INFO, "taskd"):
        config = {
            "UpstreamAddr": "10.0.0.1",
            "UpstreamPort": "9601",
            "ListenAddr": "127.0.0.1",
            "ListenPort": 9602,
        }
        assert api.init_taskd_proxy(config) is True
    assert "directly" in caplog.text
    assert api.init_taskd_proxy({"ListenPort": 0}) is False
    assert api.init_taskd_proxy({"Port": "1"}) is True and "'Port' is unknown" in caplog.text
    assert api.init_taskd_proxy([]) is False
    assert api.destroy_taskd_proxy() is True
