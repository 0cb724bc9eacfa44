"""`taskd status` on a terminal where no manager answers: it waits, shows a journal that comes, and
leaves the terminal as it was. A real job is in tests/recovery/test_status.py."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from taskd.cli.live import pressed

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training

from tests.lab.terminal import Terminal

START = {"time": 1.0, "kind": "start", "job": "j", "nodes": 1, "ranks_per_node": 4}
END = {"time": 3.0, "kind": "end", "ok": True, "reason": "every node ended well"}


@pytest.fixture
def terminal(tmp_path):
    env = training.environment(tmp_path, TASKD_LOG_PATH=str(tmp_path), MINDX_TASK_ID="j")
    found = Terminal(env, 200, 24)
    yield found
    found.close()


def test_it_waits_for_a_job_and_shows_how_it_has_ended(terminal, tmp_path):
    terminal.until("waiting for job j")
    lines = "".join(json.dumps(line) + "\n" for line in (START, END))
    (tmp_path / "journal-j.jsonl").write_text(lines)
    assert terminal.ends() == 0
    assert "ended well: every node ended well" in terminal.text.rpartition("\x1b[?1049l")[2]


@pytest.mark.parametrize("key", ["q", "Ctrl-C"])
def test_the_reader_leaves(terminal, key):
    terminal.until("q quit")
    if key == "q":
        os.write(terminal.ours, b"q")
    else:
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.ends() == 1


def test_keys_as_terminals_send_them():
    assert list(pressed(b"a\x1b[A\x1b[6~\x1b[1;5C/\x1b")) == ["a", "up", "down", "/", "escape"]
    assert list(pressed(b"\x7f\r\x1b[")) == ["delete", "enter"]
    assert list(pressed(b"\xff")) == ["\xff"]
