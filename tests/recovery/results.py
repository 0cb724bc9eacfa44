"""What a job's ranks have written, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Result:
    status: int
    output: str
    directory: Path
    incidents: list[dict] = field(default_factory=list)

    def steps(self, rank: int) -> dict[int, set[str]]:
        """step -> the different values recorded for it; a step that was handed out again has one
        set of values if exact."""
        out: dict[int, set[str]] = {}
        for kind, number, _, values in self._lines(rank):
            if kind == "step":
                out.setdefault(int(number), set()).add(values)
        return out

    def final(self, rank: int) -> list[str]:
        return [
            f"{number} {values}" for kind, number, _, values in self._lines(rank) if kind == "final"
        ]

    def committed(self, rank: int) -> list[int]:
        """The steps of which the script heard that they are committed, in that order, in all
        processes of the rank."""
        return [int(step) for kind, step, _, _ in self._lines(rank) if kind == "committed"]

    def pids(self, rank: int) -> list[int]:
        """Processes that held the rank, in order."""
        pids = [int(pid) for kind, _, pid, _ in self._lines(rank) if kind == "step"]
        return list(dict.fromkeys(pids))

    def _lines(self, rank: int):
        path = self.directory / f"rank-{rank}"
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, *rest = line.split()
            if kind == "step":
                yield kind, rest[0], rest[1], " ".join(rest[2:])
            else:
                yield kind, rest[1], rest[0], rest[2]

    def log(self, name: str) -> str:
        return "".join(p.read_text() for p in sorted((self.directory / "log").glob(name)))
