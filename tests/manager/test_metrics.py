"""Metrics of a real manager over HTTP, for those who want them and for those who mean harm."""

from __future__ import annotations

import http.client
import logging
import os
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from taskd.history.metrics import endpoint
from taskd.manager.history import observers
from taskd.manager.history.observers import Observers
from taskd.manager.limits import ManagerLimits
from taskd.messages import from_agent, from_rank
from taskd.messages.node_progress import NodeProgress

LOOPBACK = ("127.0.0.1", 0)
PATIENCE = 20.0


def scraped(manager):
    """The samples, by name and labels' values."""
    port = manager.server.observers.endpoint.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
        text = answer.read().decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def until(manager, condition):
    """The first scrape of which `condition` is true."""
    give_up = time.monotonic() + PATIENCE
    while not condition(found := scraped(manager)):
        assert time.monotonic() < give_up, found
        time.sleep(0.1)
    return found


@pytest.fixture
def manager(start):
    running = start(
        nodes=2, observers=Observers(LOOPBACK), limits=ManagerLimits(silence=PATIENCE * 3)
    )
    running.wait(lambda: running.server.observers.endpoint.port)
    return running


def answer(manager, data, wait=True):
    """What the endpoint says to `data`, until it closes the connection."""
    with socket.create_connection(
        ("127.0.0.1", manager.server.observers.endpoint.port), PATIENCE
    ) as line:
        line.sendall(data)
        said = b""
        try:
            while wait and (more := line.recv(65_536)):
                said += more
        except ConnectionResetError:
            pass
        return said


def test_a_scrape(manager):
    agents = manager.protected(2)
    agents[0].send(
        from_agent.Heartbeat(2, progress=NodeProgress((7, 6), bytes((1, 2)), (20_000, 20_000), 100))
    )
    found = until(
        manager, lambda f: f.get(("taskd_job_state", "training")) == 1 and ("taskd_step",) in f
    )
    assert found["taskd_agents", "running"] == 2 and found["taskd_agents", "missing"] == 0
    assert found["taskd_ranks", "computing"] == found["taskd_ranks", "updating"] == 1
    assert found["taskd_ranks", "unseen"] == 2
    assert found[("taskd_step",)] == 6
    assert found[("taskd_step_highest",)] == 7
    assert found[("taskd_step_end",)] == 100
    assert found[("taskd_step_seconds",)] == 0.02
    assert found[("taskd_manager_loop_seconds_count",)] > 0
    assert 0 <= found[("taskd_goodput_ratio",)] <= 1
    assert ("taskd_job_info", "job") in found


def test_an_incident_under_way_and_dropped_messages(start):
    manager = start(
        nodes=2,
        observers=Observers(LOOPBACK),
        ladder=("retry", "recover-in-place", "recover", "exit"),
    )
    manager.wait(lambda: manager.server.observers.endpoint.port)
    agents = manager.protected(2)
    agents[0].send(from_rank.RankJoined(3))  # not its rank
    agents[1].send(from_agent.RankDied(2, 0, "killed by SIGKILL"))
    found = until(manager, lambda f: f.get(("taskd_job_state", "repairing")) == 1)
    assert found["taskd_dropped_messages_total", "foreign rank"] == 1
    assert found[("taskd_faults_total",)] == found[("taskd_replaced_ranks_total",)] == 1
    assert found[("taskd_ladder_strategies_left",)] == 1
    assert 0 <= time.time() - found[("taskd_incident_began_timestamp_seconds",)] < 60
    assert found["taskd_job_state", "training"] == 0


def test_open_metrics(manager):
    port = manager.server.observers.endpoint.port
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    line.request(
        "GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0"}
    )
    said = line.getresponse()
    text = said.read()
    assert said.headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", b"405"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /metrics\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.1\r\nAccept: \xff\x00\r\nx\r\n\r\n", b"200"),
        (b"GET /metrics?x=1 HTTP/1.0\r\n\r\n", b"200"),
        (b"x" * 100_000, b""),  # too long
    ],
)
def test_only_get_metrics_is_answered(manager, request_, status):
    said = answer(manager, request_)
    assert said.split(b" ")[1:2] == ([status] if status else []), said[:200]


def test_a_header_is_not_given_back(manager):
    accept = b"application/openmetrics-text; version=1.0.0;\r\n Set-Cookie: x"
    said = answer(manager, b"GET /metrics HTTP/1.1\r\nAccept: " + accept + b"\r\n\r\n")
    assert b" 200 " in said and b"Cookie" not in said


def test_hostile_scrapers_hold_nobody_up(manager, monkeypatch):
    """200 connections that say half of a request, and some that read no answer: metrics are still
    there, the manager serves its agents, and in the end every connection is closed."""
    monkeypatch.setattr(endpoint, "TIME", 60.0)  # it is the number that is limited here
    agents = manager.protected(2)
    place = ("127.0.0.1", manager.server.observers.endpoint.port)
    lines = []
    try:
        for i in range(200):
            lines.append(line := socket.create_connection(place, PATIENCE))
            line.sendall((b"GET /met", b"", b"GET /metrics HTTP/1.1\r\n\r\n", b"\0" * 4000)[i % 4])
        agents[0].send(from_agent.Heartbeat(2, 1))
        manager.serves(agents[0])
        found = scraped(manager)
        assert found[("taskd_restarts_total",)] == 0
        manager.wait(lambda: len(manager.server.observers.endpoint._open) <= endpoint.CONNECTIONS)
    finally:
        for line in lines:
            line.close()
    manager.wait(lambda: not manager.server.observers.endpoint._open)


def test_a_connection_that_says_nothing_is_closed(manager, monkeypatch):
    monkeypatch.setattr(endpoint, "TIME", 0.2)
    assert answer(manager, b"GET /metrics HTTP/1.1\r\nX: ") == b""


def test_a_port_in_use_is_one_warning_and_is_tried_again(start, monkeypatch, caplog):
    monkeypatch.setattr(endpoint, "AGAIN", 0.05)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with caplog.at_level(logging.WARNING):
            manager = start(observers=Observers(("127.0.0.1", port)))
            manager.protected(1)
            manager.wait(lambda: "no metrics at" in caplog.text)
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            assert scraped(manager)[("taskd_restarts_total",)] == 0
            break
        except OSError:
            assert time.monotonic() < give_up
            time.sleep(0.05)
    assert caplog.text.count("no metrics at") == 1 and "TASKD_METRICS_PORT" in caplog.text


def test_a_manager_ends_while_it_is_scraped(manager):
    place = ("127.0.0.1", manager.server.observers.endpoint.port)
    with socket.create_connection(place, PATIENCE) as line:
        line.sendall(b"GET /metrics HTTP/1.1\r\n")
        manager.wait(lambda: manager.server.observers.endpoint._open)
        manager.server.stop("test")
        assert manager.outcome().ok is None
        assert line.recv(10) == b""
    with pytest.raises(OSError):
        socket.create_connection(place, PATIENCE)


def test_without_prometheus_client_the_job_runs_and_one_line_says_why(start, monkeypatch, caplog):
    for name in [n for n in sys.modules if n.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "taskd.history.metrics.figures", raising=False)
    with caplog.at_level(logging.WARNING):
        manager = start(observers=Observers(LOOPBACK))
        manager.protected(1)
    assert "pip install prometheus-client" in caplog.text
    assert manager.server.observers.endpoint is None


def test_the_files_of_a_script_for_its_own_metrics_are_left_alone(tmp_path):
    code = (
        "from taskd.core.coordinator import Coordinator; from taskd.core.settings import Settings;"
        "from taskd.manager.history.observers import _endpoint;"
        "_, figures = _endpoint(('127.0.0.1', 0), Coordinator(Settings(1, 2)));"
        "figures.turn(1.0); print(figures.text(False)[0].decode())"
    )
    mine = {name: str(tmp_path / "none") for name in observers.MULTIPROCESS}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **mine}, capture_output=True, text=True
    )
    assert done.returncode == 0 and "taskd_manager_loop_seconds_count 1.0" in done.stdout
    assert not any(tmp_path.iterdir())


def test_off_by_default():
    made = observers.make({})
    assert made._address is None and made._targets is None
    assert observers.make({"TASKD_METRICS_PORT": "9602"})._address == ("127.0.0.1", 9602)
    assert observers.make({"TASKD_METRICS_PORT": "10.0.0.1:9602"})._address == ("10.0.0.1", 9602)
