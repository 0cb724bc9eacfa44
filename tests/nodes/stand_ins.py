"""What a job talks to outside of it, as a process on a host of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hosts import Hosts

ROOT = Path(__file__).parents[2]


class StandIn:
    """It takes lines, and writes one JSON object per line after the first."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self._process, self._output = process, output

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()

    def lines(self) -> list[Any]:
        whole, _, _ = self._output.read_text().rpartition("\n")
        return [json.loads(line) for line in whole.splitlines()[1:]]


@contextmanager
def stand_in(
    machines: Hosts, host: int, output: Path, module: str, *arguments: str
) -> Iterator[StandIn]:
    """`module` of the tests runs on that host."""
    with open(output, "w") as file:
        process = subprocess.Popen(
            machines.command(host, [sys.executable, "-m", module, *arguments]),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=file,
            text=True,
        )
    try:
        yield StandIn(process, output)
    finally:
        process.kill()
        process.wait()
