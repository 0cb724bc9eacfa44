"""Notices to real programs and real web servers, of which some hang, fail, or say too much."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from taskd.history.notices import queue
from taskd.history.notices.command import Command
from taskd.history.notices.queue import Failed, Target, Targets
from taskd.history.notices.webhook import Webhook
from taskd.manager.history import observers

PATIENCE = 20.0
NOTICE = {"version": 1, "event": "end", "job": "job", "time": 1.0, "ok": True, "why": "over"}
SECRET = "a secret that nobody may be told"


def wait(condition):
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up, "never came true"
        time.sleep(0.01)


def program(tmp_path: Path, lines: str) -> str:
    path = tmp_path / f"program{len(list(tmp_path.iterdir()))}"
    path.write_text(f"#!/bin/sh\n{lines}\n")
    path.chmod(0o755)
    return str(path)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


class Server:
    """Answers posts with `status`; `begin` and `rest` are sent instead, if given."""

    def __init__(self, status=200, headers=(), body=b"", silent=False, drip=False) -> None:
        self.bodies, self.paths = [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                outer.paths.append(self.path)
                outer.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                outer.kind = self.headers["Content-Type"]
                if silent or drip:
                    try:
                        while not outer.over.wait(0.02):
                            self.wfile.write(b"H" if drip else b"")
                    except OSError:
                        pass
                    return
                self.send_response(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            do_GET = do_POST

            def log_message(self, *args: object) -> None: ...

        self.over = threading.Event()
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/token"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.over.set()
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def serve() -> Iterator:
    made = []

    def begin(**how) -> Server:
        made.append(Server(**how))
        return made[-1]

    yield begin
    for server in made:
        server.close()


def told(target: Target, *notices: dict, seconds: float = PATIENCE) -> dict[str, int]:
    targets = Targets((target,))
    targets.start()
    for notice in notices or (NOTICE,):
        targets.send(notice)
    targets.close(seconds)
    return targets.results


# -- programs --------------------------------------------------------------------------------------


def test_a_program_gets_the_notice_on_its_standard_input(tmp_path):
    path = program(tmp_path, f"cat >> {tmp_path}/got; echo >> {tmp_path}/got")
    assert told(Target(Command(path, os.environ)), NOTICE, {**NOTICE, "ok": False}) == {
        "delivered": 2,
        "failed": 0,
        "dropped": 0,
    }
    lines = (tmp_path / "got").read_text().splitlines()
    assert [json.loads(line)["ok"] for line in lines] == [True, False]


def test_what_a_program_says_is_not_kept_and_what_it_does_not_read_holds_nothing_up(tmp_path):
    path = program(tmp_path, "head -c 100000000 /dev/zero; head -c 100000000 /dev/zero >&2")
    assert told(Target(Command(path, os.environ)))["delivered"] == 1


def test_a_program_that_fails_is_tried_twice_and_is_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(queue, "AGAIN", 0.0)
    path = program(tmp_path, f"echo x >> {tmp_path}/tries; exit 3")
    target = Target(Command(path, os.environ))
    target.start()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            target.put(b"{}")
        wait(lambda: target.results["failed"] == 3)
    assert (tmp_path / "tries").read_text() == "x\n" * 6
    assert [r.getMessage() for r in caplog.records] == [
        f"a notice to exec:{path} was not delivered: it ended with status 3"
    ]
    target.finish()


def test_a_program_that_is_not_there_is_not_tried_again(caplog):
    with caplog.at_level(logging.WARNING):
        assert told(Target(Command("/nowhere/program", {})))["failed"] == 1
    assert "cannot be run" in caplog.text


def test_a_program_that_hangs_is_killed_with_what_it_has_started(tmp_path):
    lines = f"sleep 1000 & echo $! > {tmp_path}/child; echo $$ > {tmp_path}/pid; wait"
    command = Command(program(tmp_path, lines), os.environ)
    with pytest.raises(Failed, match="it was killed: it had not ended after 1 s"):
        command.deliver(b"{}", 1.0)
    for name in ("pid", "child"):
        pid = int((tmp_path / name).read_text())
        wait(lambda pid=pid: not alive(pid))


def test_a_program_does_not_get_the_secrets_of_the_job(tmp_path):
    path = program(tmp_path, f"env > {tmp_path}/env")
    environ = {
        **os.environ,
        "TASKD_NOTIFY": f"exec:{path}",
        "TASKD_SECRET": SECRET,
        "TASKD_PORT": "9601",
    }
    made = observers.make(environ)
    made._targets.start()
    made._targets.send({**NOTICE, "why": f"rank 0 died: bad key {SECRET}"})
    made._targets.close(PATIENCE)
    seen = (tmp_path / "env").read_text()
    assert "TASKD_PORT=9601" in seen
    assert SECRET not in seen and "TASKD_NOTIFY" not in seen


# -- web servers -----------------------------------------------------------------------------------


def test_a_web_server_gets_the_notice_as_json(serve):
    server = serve(status=204)
    assert told(Target(Webhook(server.url)))["delivered"] == 1
    assert json.loads(server.bodies[0]) == NOTICE
    assert server.kind == "application/json" and server.paths == ["/hook/token"]


def test_the_secret_is_taken_out_of_what_is_told(serve):
    server = serve()
    secret = 'with "quotes" and ü'
    made = observers.make({"TASKD_NOTIFY": server.url, "TASKD_SECRET": secret})
    made._targets.start()
    made._targets.send({**NOTICE, "why": f"ValueError: {secret}"})
    made._targets.close(PATIENCE)
    assert json.loads(server.bodies[0])["why"] == "ValueError: ***"


@pytest.mark.parametrize(("status", "tries"), [(500, 2), (429, 2), (404, 1), (401, 1)])
def test_what_may_be_over_soon_is_tried_again(serve, monkeypatch, caplog, status, tries):
    monkeypatch.setattr(queue, "AGAIN", 0.0)
    server = serve(status=status)
    target = Target(Webhook(server.url))
    target.start()
    with caplog.at_level(logging.WARNING):
        target.put(b"{}")
        wait(lambda: target.results["failed"])
        target.finish()
        assert target.join(time.monotonic() + PATIENCE)  # it is counted before it is said
    assert len(server.bodies) == tries
    assert f"the answer is {status}" in caplog.text and "token" not in caplog.text


@pytest.mark.parametrize("place", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/elsewhere"])
def test_a_redirect_is_not_followed(serve, place):
    server = serve(status=302, headers=(("Location", place),))
    with pytest.raises(Failed, match="302"):
        Webhook(server.url).deliver(b"{}", PATIENCE)
    assert len(server.paths) == 1


def test_an_endless_answer_is_not_read_to_its_end(serve):
    server = serve(body=b"x" * 50_000_000)
    assert told(Target(Webhook(server.url)))["delivered"] == 1


@pytest.mark.parametrize("how", ["silent", "drip"])
def test_a_server_that_does_not_answer_has_a_time_limit(serve, how):
    with pytest.raises(Failed):
        Webhook(serve(**{how: True}).url).deliver(b"{}", 0.3)


def test_no_server():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/token"
    with pytest.raises(Failed, match="refused"):
        Webhook(url).deliver(b"{}", PATIENCE)


# -- the queue -------------------------------------------------------------------------------------


def test_a_target_that_hangs_delays_no_other_and_the_end_only_so_long(tmp_path, serve, caplog):
    hangs = Target(Command(program(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 1000"), os.environ))
    server = serve()
    targets = Targets((hangs, Target(Webhook(server.url))))
    targets.start()
    for _ in range(3):
        targets.send(NOTICE)
    wait(lambda: len(server.bodies) == 3)
    wait((tmp_path / "pid").exists)
    with caplog.at_level(logging.WARNING):
        targets.close(0.2)
    assert "1 targets of notices had not answered 0.2 s after the end; 2 notices" in caplog.text
    wait(lambda: (tmp_path / "pid").read_text())
    wait(lambda: not alive(int((tmp_path / "pid").read_text())))


def test_a_full_queue_drops_and_never_waits(serve):
    server = serve(silent=True)
    target = Target(Webhook(server.url), waiting=2)
    targets = Targets((target,))
    targets.start()
    targets.send(NOTICE)
    wait(lambda: server.bodies)
    for _ in range(10):
        targets.send(NOTICE)
    assert targets.results["dropped"] == 8
    targets.close(0.0)
    wait(lambda: not target._thread.is_alive())


def test_a_defect_is_logged_and_the_next_notice_is_delivered(caplog):
    class Broken:
        name = "broken"
        times = 0

        def deliver(self, payload: bytes, seconds: float) -> None:
            self.times += 1
            if self.times == 1:
                raise RuntimeError("a defect")

        def abandon(self) -> None: ...

    with caplog.at_level(logging.ERROR):
        found = told(Target(Broken()), NOTICE, NOTICE)
    assert found == {"delivered": 1, "failed": 1, "dropped": 0}
    assert "a defect" in caplog.text
