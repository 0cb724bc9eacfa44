"""The records of the demo's ranks, and the comparison of two runs. Standard library only.

One text file per rank, one line per event, each written whole: `loss STEP HEX` inside an attempt
(twice where it was repeated), `committed STEP PID NANOSECONDS` after it, `final SHA256` at the end.
Floats are written as hexadecimal, which loses no bit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


class Writer:
    """Appends to the record of `rank`; a replacement continues its predecessor's."""

    def __init__(self, directory: Path, rank: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(_path(directory, rank), flags, 0o600)

    def loss(self, step: int, value: float) -> None:
        self._line(f"loss {step} {value.hex()}")

    def committed(self, step: int, pid: int) -> None:
        self._line(f"committed {step} {pid} {time.monotonic_ns()}")

    def final(self, digest: str) -> None:
        self._line(f"final {digest}")

    def _line(self, text: str) -> None:
        os.write(self._fd, text.encode() + b"\n")


@dataclass(frozen=True)
class Commit:
    step: int
    pid: int
    at: int  # time.monotonic_ns


@dataclass
class Record:
    """What one rank wrote. `losses`: by step; more than one where a repeated attempt had another
    result."""

    losses: dict[int, set[str]] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    finals: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last committed step, -1 before the first."""
        return self.commits[-1].step if self.commits else -1


def read(directory: Path, rank: int) -> Record:
    """What `rank` has written so far."""
    found, path = Record(), _path(directory, rank)
    text = path.read_text() if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        word, *values = line.split()
        if word == "loss":
            found.losses.setdefault(int(values[0]), set()).add(values[1])
        elif word == "committed":
            found.commits.append(Commit(*map(int, values)))
        else:
            found.finals.append(values[0])
    return found


def compare(reference: Sequence[Record], other: Sequence[Record], steps: int) -> list[str]:
    """The differences in every rank's loss at each of `steps` steps and in its final parameters: a
    line per rank and kind."""
    found = []
    for rank, (a, b) in enumerate(zip(reference, other, strict=True)):
        wrong = [
            s
            for s in range(steps)
            if len(b.losses.get(s, ())) != 1 or a.losses.get(s) != b.losses[s]
        ]
        if wrong:
            losses = [" and ".join(sorted(r.losses.get(wrong[0], {"none"}))) for r in (a, b)]
            found.append(
                f"rank {rank}, step {wrong[0]}, first of {len(wrong)}: loss {losses[0]}"
                f" undisturbed, {losses[1]} disturbed"
            )
        if len(a.finals) != 1 or a.finals != b.finals:
            found.append(f"rank {rank}: hash {a.finals} undisturbed, {b.finals} disturbed")
    return found


@dataclass(frozen=True)
class Kill:
    """A SIGKILL that was sent. `at`: time.monotonic_ns."""

    rank: int
    pid: int
    at: int


@dataclass(frozen=True)
class Recovery:
    """A recovery from a kill, by the ranks' records."""

    step: int  # the first that the replacement committed
    pid: int  # of the replacement
    seconds: float  # from the kill until all ranks had committed that step
    # steps that all ranks had committed before the kill and that were repeated after it
    lost: int
    kept: int  # other ranks that are the same process as before


def recovery(records: Sequence[Record], kill: Kill) -> Recovery | None:
    """The recovery from `kill`; None until every rank has passed the replacement's first step."""
    before = [[c for c in r.commits if c.at <= kill.at] for r in records]
    after = [[c for c in r.commits if c.at > kill.at] for r in records]
    newcomer = next((c for c in after[kill.rank] if c.pid != kill.pid), None)
    if newcomer is None or not all(before):
        return None
    step = newcomer.step
    # a survivor that was rolled back commits the step a second time: the last commit counts, and
    # none comes after a later step
    if not all(
        r.finals or any(c.step > step and c.at > newcomer.at for c in a)
        for r, a in zip(records, after, strict=True)
    ):
        return None
    last = max(c.at for r in records for c in r.commits if c.step == step)
    common = min(b[-1].step for b in before)
    again = {c.step for a in after for c in a if c.step <= common}
    same = [b[-1].pid == (a or b)[-1].pid for b, a in zip(before, after, strict=True)]
    return Recovery(step, newcomer.pid, (last - kill.at) / 1e9, len(again), sum(same))


def _path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.txt"
