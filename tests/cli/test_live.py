"""`taskd status` on a terminal where no manager answers: it waits, shows a journal that comes, and
leaves the terminal as it was. A real job is in tests/recovery/test_status.py."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from taskd.cli.live import pressed

sys.path.insert(0, str(Path(__file__).parents[1] / "recovery"))
import training

START = {"time": 1.0, "kind": "start", "job": "j", "nodes": 1, "ranks_per_node": 4}
END = {"time": 3.0, "kind": "end", "ok": True, "reason": "every node ended well"}
LIMIT = 60.0


class Terminal:
    def __init__(self, directory: Path) -> None:
        self.ours, theirs = pty.openpty()
        self.before, self.text = termios.tcgetattr(theirs), ""
        env = training.environment(directory, TASKD_LOG_PATH=str(directory), MINDX_TASK_ID="j")
        self.process = subprocess.Popen(
            [str(training.BIN / "taskd"), "status"],
            env={**env, "TERM": "xterm", "COLUMNS": "200", "LINES": "24"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        self._theirs = theirs

    def until(self, words: str) -> None:
        end = time.monotonic() + LIMIT
        while words not in self.text:
            assert select.select([self.ours], [], [], end - time.monotonic())[0], self.text
            self.text += os.read(self.ours, 65536).decode()

    def ends(self) -> int:
        end = time.monotonic() + LIMIT
        while select.select([self.ours], [], [], 0.1)[0] or self.process.poll() is None:
            assert time.monotonic() < end, (
                self.text
            )  # read all the time: a terminal has little room
            if select.select([self.ours], [], [], 0.1)[0]:
                self.text += os.read(self.ours, 65536).decode(errors="replace")
        status = self.process.wait(1.0)
        assert termios.tcgetattr(self._theirs) == self.before
        os.close(self._theirs)
        os.close(self.ours)
        return status


def test_it_waits_for_a_job_and_shows_how_it_has_ended(tmp_path):
    terminal = Terminal(tmp_path)
    terminal.until("waiting for job j")
    lines = "".join(json.dumps(line) + "\n" for line in (START, END))
    (tmp_path / "journal-j.jsonl").write_text(lines)
    assert terminal.ends() == 0
    assert "ended well: every node ended well" in terminal.text.rpartition("\x1b[?1049l")[2]


@pytest.mark.parametrize("key", ["q", "Ctrl-C"])
def test_the_reader_leaves(tmp_path, key):
    terminal = Terminal(tmp_path)
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
