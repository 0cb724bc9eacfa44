"""Collects the ranges of one rank, and writes them every few seconds in a separate thread.

The training thread only appends to a list. If the thread does not keep up, ranges are dropped and
counted.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable

from taskd.profiling.files import Files

FLUSH = 5.0  # seconds; documented
MOST = 200_000  # ranges that wait to be written: some 20 MB

# kind, name, begin and end by perf_counter_ns, step
Range = tuple[str, str, int, int, int]


class Recorder:
    """`told`: is given (step, steps, seconds taken, seconds waited) of what was committed since the
    last call, every few seconds."""

    def __init__(self, files: Files, told: Callable[[int, int, float, float], None]) -> None:
        self._files, self._told = files, told
        # both clocks at the same moment: lines have the time of day
        self._offset = time.time_ns() - time.perf_counter_ns()
        self._ranges: list[Range] = []
        self.dropped = 0
        self.step = -1  # the present one; -1 between two
        # since the beginning, written by the training thread alone, and as they were told last
        self._last, self._steps, self._taken, self._waited = -1, 0, 0, 0
        self._told_of = (0, 0, 0)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taskd-profile", daemon=True)
        self._thread.start()

    # -- the training thread -----------------------------------------------------------------------

    def add(self, kind: str, name: str, begin: int, end: int) -> None:
        if len(self._ranges) < MOST:
            self._ranges.append((kind, name, begin, end, self.step))
        else:
            self.dropped += 1

    def wait(self, begin: int, end: int) -> None:
        """This rank has waited for others."""
        self._waited += end - begin

    def committed(self, step: int, begin: int, end: int) -> None:
        self._last, self._steps, self._taken = step, self._steps + 1, self._taken + end - begin

    # -- its own -----------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._over.wait(FLUSH):
            self._flush()
        self._flush()

    def _flush(self) -> None:
        ranges, self._ranges = self._ranges, []
        self._files.write([self._line(found) for found in ranges])
        now = (self._steps, self._taken, self._waited)
        steps, taken, waited = (new - old for new, old in zip(now, self._told_of, strict=True))
        self._told_of = now
        if steps:
            self._told(self._last, steps, taken / 1e9, waited / 1e9)

    def _line(self, found: Range) -> bytes:
        kind, name, begin, end, step = found
        line = {"kind": kind, "name": name, "begin": begin + self._offset, "ns": end - begin}
        if step >= 0:
            line["step"] = step
        return json.dumps(line, separators=(",", ":")).encode()

    def close(self) -> None:
        """Write the rest, and end the thread."""
        self._over.set()
        self._thread.join(FLUSH)
