"""What the journal and the status cost the manager's loop: a line, a rank's moment, the last line
of an incident, and a look at all ranks.

    python benchmarks/journal.py [--directory DIR]

The directory is where lines are written; a temporary one by default. Each figure is the least of
five repeats.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from arguments import Arguments
from figures import Figures, publish

from taskd.core.incident.times import EVENTS, RankTimes
from taskd.core.job.progress import Progress
from taskd.manager.history.journal import Journal
from taskd.messages.node_progress import NodeProgress

LINES = 2000
PHASE = {"incident": 1, "round": 1, "strategy": "recover-in-place", "phase": "INTERRUPT"}


def least(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    found = []
    for _ in range(5):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return min(found)


def line(directory: Path) -> float:
    journal = Journal(str(directory), "bench")
    journal.begin({})

    def write() -> None:
        for _ in range(LINES):
            journal.write("phase", PHASE)

    seconds = least(write) / LINES
    journal.close()
    return seconds


def moments(ranks: int) -> tuple[float, float]:
    """Seconds to note one, and to tell a round in which everything happened to each rank."""

    def note() -> RankTimes:
        noted = RankTimes(1, "retry", ranks, 0.0)
        for event in EVENTS:
            for rank in range(ranks):
                noted.note(event, rank, 1.0 + rank * 1e-6)
        return noted

    full = note()
    return least(note) / ranks / len(EVENTS), least(lambda: full.for_journal(0.0))


def look(ranks: int) -> float:
    progress, each = Progress(), 8
    for node in range(ranks // each):
        usual = tuple(900_000 + (node * 7 + i) % 1000 for i in range(each))
        said = NodeProgress((100 + node % 2,) * each, b"\1" * each, usual, 1000)
        progress.heard(node, tuple(range(each * node, each * (node + 1))), said, 0.0)
    return least(progress.seen)


def main() -> None:
    parser = Arguments(__doc__)
    parser.add_argument("--directory", type=Path)
    parser.size("--ranks", [1_000, 10_000, 100_000], [8])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        found = {"a line": line(Path(directory))}
    for ranks in args.ranks:
        noted, told = moments(ranks)
        found[f"{ranks:,} ranks: a moment"] = noted
        found[f"{ranks:,} ranks: the line of a round"] = told
        found[f"{ranks:,} ranks: a look at all"] = look(ranks)
    table = Figures("what the journal costs, least of five", "", "us")
    for name, seconds in found.items():
        table.add_row(name, f"{seconds * 1e6:,.2f}")
    publish(args.json, table, seconds=found)


if __name__ == "__main__":
    main()
