"""`taskd report --serve`: what it serves to whom, that it renews itself, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from scripts import chromium
from taskd.history import files
from taskd.history.reading import Record
from tests.history.journals import BEGIN, END, STORY


def add(path: Path, records: list[Record]) -> None:
    with open(path, "a") as file:
        for r in records:
            file.write(json.dumps({"time": r.time, "kind": r.kind, **r.data}) + "\n")


@contextlib.contextmanager
def serving(place: Path):
    command = [sys.executable, "-m", "taskd.cli", "report", str(place), "--serve", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, **pipes)
    try:
        line = process.stdout.readline()
        assert line.startswith("report: http://127.0.0.1:"), process.stderr.read()
        yield process, line.split()[1]
    finally:
        process.kill()
        process.communicate()


def ask(url: str, path: str | None = None, method: str = "GET", **headers: str):
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
    connection.request(method, parts.path if path is None else path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), answer.headers


@pytest.fixture
def journal(tmp_path):
    path = files.path(tmp_path, "llm-7b")
    add(path, BEGIN)
    return path


def test_only_the_page_and_its_data_and_only_to_this_machine(journal):
    with serving(journal.parent) as (_, url):
        status, body, headers = ask(url)
        assert status == 200 and b"job" in body and headers["X-Frame-Options"] == "DENY"
        status, body, headers = ask(url, urlsplit(url).path + "data")
        assert status == 200 and json.loads(body)["job"] == "llm-7b"
        tag = {"If-None-Match": headers["ETag"]}
        assert ask(url, urlsplit(url).path + "data", **tag)[:2] == (304, b"")
        for path in ("/", "/data", "/x/data", urlsplit(url).path + "../", "/journal-llm-7b.jsonl"):
            assert ask(url, path)[0] == 404
        # a name that leads here, of a page that wants to read it
        assert ask(url, Host="evil.example")[0] == 421
        assert ask(url, Host="localhost:8080")[0] == 200  # through ssh -L
        for method in ("POST", "PUT", "DELETE"):
            assert ask(url, method=method)[0] == 501


def test_it_says_that_the_job_has_ended_and_ends_with_ctrl_c(journal):
    with serving(journal) as (process, url):
        assert "ends it" in process.stderr.readline()
        add(journal, [*STORY[len(BEGIN) :], END])
        while True:
            answer = json.loads(ask(url, urlsplit(url).path + "data")[1])
            if answer["end"]:
                break
        assert len(answer["incidents"]) == 3
        assert process.stderr.readline().startswith("the job has ended: every node ended well")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_port_that_is_taken(journal):
    with serving(journal) as (_, url):
        command = [sys.executable, "-m", "taskd.cli", "report", str(journal)]
        port = str(urlsplit(url).port)
        second = subprocess.run([*command, "--serve", port], capture_output=True, text=True)
        assert second.returncode == 1 and "name another one" in second.stderr
        both = subprocess.run([*command, "--serve", "--json"], capture_output=True, text=True)
        assert both.returncode == 2 and "--serve goes without" in both.stderr


@pytest.mark.skipif(chromium.find() is None, reason="Chromium is not installed")
def test_the_page_renews_itself_and_stays_where_it_was(journal):
    until = (
        "new Promise((done) => {{ const look = setInterval(() => {{"
        " if ({}) {{ clearInterval(look); done(true); }} }}, 50); }})"
    )
    shown = "document.querySelectorAll('#list .row[role=option]').length"
    with serving(journal) as (_, url), chromium.Browser() as browser:
        add(journal, STORY[len(BEGIN) : len(BEGIN) + 10])
        browser.open(url)
        assert browser.value(until.format(f"{shown} === 1"))
        browser.press("ArrowDown")
        browser.press("Enter")
        add(journal, [*STORY[len(BEGIN) + 10 :], END])
        assert browser.value(until.format(f"{shown} === 3"))
        assert "Incident 1" in browser.value("document.querySelector('#detail').textContent")
        live = "document.querySelector('#live').textContent"
        assert browser.value(until.format(f"{live} === 'the job has ended'"))
        assert browser.said == []
