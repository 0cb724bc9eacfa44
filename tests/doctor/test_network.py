"""The port: free, held by this job's manager, by another's, by something else; and the way to a
manager elsewhere."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import zmq

from taskd.cli.doctor import network
from taskd.control import Control

LIMIT = 60


@contextmanager
def listener(*says: bytes) -> Iterator[int]:
    """A server that says that to whoever connects, and hangs up; nothing: it is silent."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            try:
                while True:
                    connection, _ = server.accept()
                    with connection:
                        if says:
                            connection.sendall(says[0])
                        else:
                            connection.recv(1 << 16)
                            connection.recv(1)
            except OSError:
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(LIMIT)


@pytest.fixture
def free() -> str:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


@pytest.fixture
def manager(free, tmp_path) -> Iterator[dict[str, str]]:
    environ = {
        "TASKD_PORT": free,
        "MINDX_TASK_ID": "a job",
        "TASKD_SECRET": "one",
        "TASKD_LOG_PATH": str(tmp_path),
    }
    command = [sys.executable, "-m", "taskd.manager", "--nodes", "1", "--ranks-per-node", "1"]
    process = subprocess.Popen(
        command, env={**os.environ, **environ}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with Control(environ) as control:
            assert control.resume(LIMIT) == "the ranks continue"  # which is when it listens
        yield environ
    finally:
        process.terminate()
        process.wait()


def test_a_free_port(free):
    found = network.port({"TASKD_PORT": free})
    assert (found.state, found.found) == ("ok", f"{free} on 127.0.0.1 is free")


@pytest.mark.parametrize(
    "says",
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n",),
        (b"",),
        (b"\xff" + bytes(8) + b"\x7f",),
        (b"\xff" * 64,),
        (),
    ],
)
def test_held_by_something_else(says, monkeypatch):
    monkeypatch.setattr(network, "REACH", 0.2)
    with listener(*says) as number:
        found = network.port({"TASKD_PORT": str(number)})
        other = network.manager({"TASKD_MANAGER_ADDR": f"127.0.0.1:{number}"})
    assert found.state == "error"
    assert "held by another program" in found.found
    assert "TASKD_PORT" in found.remedy
    assert other.state == "error" and "another program" in other.found


def test_held_by_something_of_zeromq():
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    number = router.bind_to_random_port("tcp://127.0.0.1")
    try:
        assert network.port({"TASKD_PORT": str(number)}).state == "error"
    finally:
        router.close(0)
        context.term()


def test_held_without_listening(free, monkeypatch):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", int(free)))
        found = network.port({"TASKD_PORT": free})
        monkeypatch.setattr(network.settings, "port", lambda environ: int(free))
        unnamed = [network.port({}, nodes) for nodes in (1, 2)]
    assert found.state == "error" and "held by another program" in found.found
    assert [finding.state for finding in unnamed] == ["ok", "error"]
    assert "takes the next free one" in unnamed[0].found


def test_a_manager(manager):
    number = manager["TASKD_PORT"]
    at = {**manager, "TASKD_MANAGER_ADDR": f"127.0.0.1:{number}"}
    assert (
        network.port(manager).found
        == f"{number} on 127.0.0.1 is held by the manager of this job, which answers"
    )
    assert network.manager(at).found == f"the manager of this job answers at 127.0.0.1:{number}"
    for wrong in ({"TASKD_SECRET": "another"}, {"MINDX_TASK_ID": "another"}, {"TASKD_SECRET": ""}):
        found = network.port({**manager, **wrong})
        assert found.state == "error"
        assert "another job or with another secret" in found.found
        assert "TASKD_SECRET" in found.remedy
        assert network.manager({**at, **wrong}).state == "error"


@pytest.mark.parametrize(
    ("environ", "state", "words"),
    [
        (
            {"POD_IP": "203.0.113.7"},
            "error",
            "203.0.113.7 cannot be opened: Cannot assign requested address",
        ),
        ({"POD_IP": "0.0.0.0"}, "ok", "is free"),
    ],
)
def test_addresses(free, environ, state, words):
    found = network.port({"TASKD_PORT": free, **environ})
    assert found.state == state and words in found.found, found


def test_several_nodes_need_an_address(free):
    found = network.port({"TASKD_PORT": free}, nodes=2)
    assert found.state == "warning"
    assert "other nodes cannot reach it" in found.found
    assert "POD_IP" in found.remedy
    assert network.port({"TASKD_PORT": free, "POD_IP": "0.0.0.0"}, nodes=2).state == "ok"


def test_no_manager_yet(free):
    assert network.manager({}).state == "ok"
    found = network.manager({"TASKD_MANAGER_ADDR": f"127.0.0.1:{free}"})
    assert found.state == "warning" and f"nothing listens at 127.0.0.1:{free} yet" in found.found


def test_a_name_that_nobody_knows():
    found = network.manager({"TASKD_MANAGER_ADDR": "no-such-host.invalid"})
    assert found.state == "error" and "no-such-host.invalid has no address" in found.found


def test_a_machine_that_does_not_answer(monkeypatch):
    def out_of_reach(*_, **__):
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "create_connection", out_of_reach)
    found = network.manager({"TASKD_MANAGER_ADDR": "127.0.0.1"})
    assert found.state == "warning"
    assert "cannot be reached" in found.found
    assert "open port 9601" in found.remedy


@pytest.mark.parametrize(
    ("environ", "nodes", "names", "here", "state", "says"),
    [
        ({"GLOO_SOCKET_IFNAME": "lo"}, 2, {}, (), "ok", "it listens on lo"),
        ({"GLOO_SOCKET_IFNAME": "lo,nic7"}, 1, {}, (), "error", "names nic7"),
        ({}, 2, {"here": ["10.0.0.7"]}, ("10.0.0.7",), "ok", "10.0.0.7 (here)"),
        ({}, 2, {"here": ["127.0.1.1"]}, ("127.0.1.1",), "warning", "cannot reach it"),
        ({}, 1, {"here": ["127.0.1.1"]}, ("127.0.1.1",), "ok", "127.0.1.1 (here)"),
        ({}, 2, {"here": ["10.9.9.9"]}, ("127.0.0.1",), "warning", "no address here"),
        ({}, 1, {}, ("::1",), "error", "there is no 127.0.0.1"),
        ({}, 1, {"here": ["::1"]}, ("::1",), "ok", "::1 (here)"),
    ],
)
def test_where_gloo_listens(monkeypatch, environ, nodes, names, here, state, says):
    monkeypatch.setattr(network.addresses, "of", lambda name: names.get(name, []))
    monkeypatch.setattr(network.addresses, "is_here", lambda address: address in here)
    found = network.gloo(environ, nodes, "here")
    assert found.state == state and says in found.found, found
