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
        self._fd = os.open(
            _path(directory, rank), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
        )

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
    """What one rank wrote."""

    losses: dict[int, set[str]] = field(
        default_factory=dict
    )  # by step; more than one if a repeated attempt had another result
    commits: list[Commit] = field(default_factory=list)
    finals: list[str] = field(default_factory=list)

    @property
    def step(self) -> int:
        """The last committed step, -1 before the first."""
        return self.commits[-1].step if self.commits else -1


class Reader:
    """Reads a record that is still being written."""

    def __init__(self, directory: Path, rank: int) -> None:
        self._path, self._offset, self.record = _path(directory, rank), 0, Record()

    def poll(self) -> Record:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return self.record
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.decode().splitlines():
            word, *values = line.split()
            if word == "loss":
                self.record.losses.setdefault(int(values[0]), set()).add(values[1])
            elif word == "committed":
                self.record.commits.append(Commit(int(values[0]), int(values[1]), int(values[2])))
            elif word == "final":
                self.record.finals.append(values[0])
        return self.record


@dataclass(frozen=True)
class Comparison:
    """How many `losses` and `hashes` were compared; `differences` says what is not equal, one line
    per rank and kind."""

    losses: int
    hashes: int
    differences: tuple[str, ...]

    @property
    def equal(self) -> bool:
        return not self.differences


def compare(reference: Sequence[Record], other: Sequence[Record], steps: int) -> Comparison:
    """Compare every rank's loss at each of `steps` steps, and its final parameters."""
    differences = []
    if len(reference) != len(other):
        differences.append(
            f"{len(reference)} ranks in the reference run, {len(other)} in the protected run"
        )
    losses = hashes = 0
    for rank, (a, b) in enumerate(zip(reference, other, strict=False)):
        for name, record in (("reference", a), ("protected", b)):
            missing = [s for s in range(steps) if s not in record.losses]
            if missing:
                differences.append(
                    f"rank {rank}, {name} run: no loss of step {missing[0]}" + _more(missing)
                )
            if len(record.finals) != 1:
                differences.append(
                    f"rank {rank}, {name} run: {len(record.finals)} final hashes instead of one"
                )
        unequal = [
            s
            for s in sorted(set(a.losses) & set(b.losses))
            if a.losses[s] != b.losses[s] or len(b.losses[s]) != 1
        ]
        if unequal:
            step = unequal[0]
            differences.append(
                f"rank {rank}, step {step}: loss {_hex(a, step)} in the reference run,"
                f" {_hex(b, step)} in the protected run" + _more(unequal)
            )
        if a.finals[:1] != b.finals[:1] and a.finals and b.finals:
            differences.append(
                f"rank {rank}: final hash {a.finals[0][:12]} in the reference run,"
                f" {b.finals[0][:12]} in the protected run"
            )
        losses += len(set(a.losses) & set(b.losses))
        hashes += bool(a.finals and b.finals)
    return Comparison(losses, hashes, tuple(differences))


@dataclass(frozen=True)
class Kill:
    """A SIGKILL that was sent. `at` is time.monotonic_ns; `wall` time.time at the same moment, the
    journal's clock."""

    rank: int
    pid: int
    at: int
    wall: float


@dataclass(frozen=True)
class Recovery:
    """A recovery from a kill, by the ranks' records."""

    step: int  # the first that the replacement committed
    seconds: float  # from the kill until all ranks had committed that step
    # steps that all ranks had committed before the kill and that were repeated after it
    lost: int
    before: tuple[int, ...]  # pid of each rank
    after: tuple[int, ...]

    def kept(self, killed: int) -> int:
        """How many of the other ranks are the same process as before."""
        return sum(
            b == a
            for rank, (b, a) in enumerate(zip(self.before, self.after, strict=True))
            if rank != killed
        )


def recovery(records: Sequence[Record], kill: Kill) -> Recovery | None:
    """The recovery from `kill`; None until every rank has passed the replacement's first step."""
    before = [[c for c in r.commits if c.at <= kill.at] for r in records]
    after = [[c for c in r.commits if c.at > kill.at] for r in records]
    newcomer = [c for c in after[kill.rank] if c.pid != kill.pid]
    if not newcomer or not all(before):
        return None
    step = newcomer[0].step
    # a survivor that was taken back commits the step a second time: the last commit counts, and
    # none comes after a later step
    if not all(
        r.finals or any(c.step > step and c.at > newcomer[0].at for c in a)
        for r, a in zip(records, after, strict=True)
    ):
        return None
    moments = [
        max((c.at for c in [*b, *a] if c.step == step), default=0)
        for b, a in zip(before, after, strict=True)
    ]
    seconds = (max(moments) - kill.at) / 1e9
    common = min(b[-1].step for b in before)
    again = {c.step for a in after for c in a if c.step <= common}
    return Recovery(
        step,
        seconds,
        len(again),
        tuple(b[-1].pid for b in before),
        tuple((a or b)[-1].pid for b, a in zip(before, after, strict=True)),
    )


def _path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank}.txt"


def _hex(record: Record, step: int) -> str:
    return " and ".join(sorted(record.losses[step]))


def _more(steps: Sequence[int]) -> str:
    return f" (and {len(steps) - 1} steps more)" if len(steps) > 1 else ""
