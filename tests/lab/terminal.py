"""`taskd status` on a terminal of its own."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

LIMIT = 150.0  # seconds


class Terminal:
    """`ours`: what keys are written to; `text`: what it has shown."""

    def __init__(self, env: dict[str, str], columns: int = 120, lines: int = 50) -> None:
        self.ours, self._theirs = pty.openpty()
        self._before, self.text = termios.tcgetattr(self._theirs), ""
        size = {"TERM": "xterm", "COLUMNS": str(columns), "LINES": str(lines)}
        self.process = subprocess.Popen(
            [str(Path(sys.executable).parent / "taskd"), "status"],
            env={**env, **size},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
        )

    def shows(self, words: str, seconds: float = 0.0) -> bool:
        """Whether it has shown that by now, or shows something within that time."""
        while select.select([self.ours], [], [], seconds)[0]:
            self.text += os.read(self.ours, 65_536).decode(errors="replace")
            seconds = 0.0
        return words in self.text

    def until(self, words: str) -> None:
        end = time.monotonic() + LIMIT
        while not self.shows(words, 0.1):
            assert time.monotonic() < end, self.text

    def ends(self) -> int:
        """Its exit status, with the terminal as it was before. What it writes meanwhile is read: a
        terminal has little room."""
        end = time.monotonic() + LIMIT
        while self.process.poll() is None:
            assert time.monotonic() < end, self.text
            self.shows("", 0.1)
        self.shows("")
        assert termios.tcgetattr(self._theirs) == self._before
        return self.process.wait(1.0)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._theirs)
        os.close(self.ours)
