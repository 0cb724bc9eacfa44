"""The cost of protection while nothing fails.

    python benchmarks/overhead.py [--only turns] [--blocks 6] [--steps 200] [--json FILE]

1. Jobs of benchmarks/toy.py, alternating between taskd run and plain torchrun: the median
step of each.
2. One job under taskd that alternates between steps inside and outside attempts. It misses what
differs between jobs (the preloaded library, the agent's checks), and most of the machine's noise,
which on shared cores is larger than the effect.
3. An attempt in one rank, in us: empty and repeated at once, and with a step's work that evicts the
caches; and where the time goes by cProfile, whose own cost makes short functions look slow.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arguments import Arguments
from figures import Figures, publish
from jobs import Run, wait_for_quiet
from rich.text import Text

WARM = 30  # steps at the start of a job that do not count
BY_TURNS = 25  # steps


@dataclass(frozen=True)
class Step:
    """A step's duration in ms: wall time, and a rank's CPU time, which excludes other users of the
    core."""

    clock: float
    cpu: float


def median_step(records: list[list[tuple[int, int, int, int]]]) -> Step:
    """The median over the steps of all ranks."""
    pairs = [(a, b) for rank in records for a, b in zip(rank, rank[1:], strict=False)]
    return Step(
        statistics.median((b[1] - a[1]) / 1e6 for a, b in pairs),
        statistics.median((b[3] - a[3]) / 1e6 for a, b in pairs),
    )


def block(directory: Path, ranks: int, taskd: bool, steps: int, port: int) -> Step:
    """The median step of one job."""
    with Run(directory, ranks, taskd, arguments=["--steps", str(steps + WARM)], port=port) as run:
        run.finish()
        return median_step([s.read(WARM) for s in run.steps])


def by_turns(directory: Path, ranks: int, steps: int, port: int) -> tuple[list[Step], list[Step]]:
    """Medians of the blocks of steps (inside, outside) of attempts."""
    inside: list[Step] = []
    outside: list[Step] = []
    with Run(
        directory,
        ranks,
        True,
        arguments=["--steps", str(steps), "--every-other", str(BY_TURNS)],
        port=port,
    ) as run:
        run.finish()
        read = [s.read() for s in run.steps]
    for first in range(2 * BY_TURNS, len(read[0]) - BY_TURNS + 1, BY_TURNS):
        part = [records[first : first + BY_TURNS] for records in read]
        (outside if part[0][0][0] < 0 else inside).append(median_step(part))
    return inside, outside


def attempts(directory: Path, model: str, port: int) -> dict[str, Any]:
    with Run(
        directory, 1, True, script="attempt.py", arguments=["--model", model], port=port
    ) as run:
        run.finish()
        result: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return result


def main() -> None:
    parser = Arguments(__doc__)
    parser.size("--ranks", 4, 2)
    parser.size("--blocks", 6, 1, help="jobs of each kind")
    parser.size("--steps", 200, 100, help="steps of each job")
    parser.add_argument("--only", choices=("jobs", "turns", "attempt"))
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        help="seconds to wait for a quiet machine before each block",
    )
    parser.add_argument("--port", type=int, default=0, help="of the manager; default: a free one")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="taskd-overhead-"))
    figures: dict[str, Any] = {}
    shown: list[Any] = []
    if args.only in (None, "attempt"):
        figures["attempt"] = {
            model: attempts(work / model, model, args.port)
            for model in (("tiny",) if args.smoke else ("tiny", "toy", "many"))
        }
        shown += attempt_tables(figures["attempt"])
    if args.only in (None, "turns"):
        inside, outside = by_turns(work / "turns", args.ranks, args.blocks * args.steps, args.port)
        figures["turns"] = {"inside": inside, "outside": outside}
        shown += step_table("one job, inside and outside of attempts", figures["turns"])
    if args.only in (None, "jobs"):
        figures["jobs"] = {"taskd run": [], "torchrun": []}
        for number in range(args.blocks):
            busy = wait_for_quiet(args.patience)
            print(
                f"block {number + 1} of {args.blocks}; other work takes {busy:.0f} % of the machine"
            )
            for kind in sorted(figures["jobs"], reverse=number % 2 == 1):
                # neither kind is always the first
                folder, taskd = work / f"{number}-{kind}", kind == "taskd run"
                step = block(folder, args.ranks, taskd, args.steps, args.port)
                figures["jobs"][kind].append(step)
        shown += step_table("jobs by turns", figures["jobs"])
    shutil.rmtree(work)
    publish(args.json, *shown, **figures)


def step_table(title: str, found: dict[str, list[Step]]) -> list[Any]:
    table = Figures(
        f"median step, ms: {title}",
        "",
        "blocks",
        "by the clock",
        "least",
        "most",
        "CPU of a rank",
        "least",
        "most",
    )
    for label, steps in found.items():
        cells = [str(len(steps))]
        for values in ([s.clock for s in steps], [s.cpu for s in steps]):
            cells += [f"{v:.3f}" for v in (statistics.median(values), min(values), max(values))]
        table.add_row(label, *cells)
    shown: list[Any] = [table]
    for what in ("clock", "cpu"):
        a, b = (statistics.median(getattr(s, what) for s in steps) for steps in found.values())
        shown.append(
            f"difference of the medians, {what}: {(a - b) * 1e3:+.0f} us, {(a - b) / b:+.2%}"
        )
    return shown


def attempt_tables(found: dict[str, Any]) -> list[Figures]:
    table = Figures(
        "one attempt in one rank, us of CPU time (median of blocks)",
        "model",
        "body",
        "attempt",
        "the body alone",
        "cost",
        "least",
        "by the clock",
        words=2,
    )
    for model, result in found.items():
        for body, times in result.items():
            if body != "profile":
                median, bare = statistics.median(times["attempt"]), statistics.median(times["bare"])
                least, wall = min(times["attempt"]) - bare, statistics.median(times["wall"])
                table.add_row(
                    model, body, *(f"{v:.1f}" for v in (median, bare, median - bare, least, wall))
                )
    tables = [table]
    for model, result in found.items():
        table = Figures(
            f"an empty attempt of the {model} model by cProfile: own time, us",
            "function",
            "calls",
            "us",
        )
        for own, calls, name in result["profile"]:
            table.add_row(Text(name), f"{calls:.1f}", f"{own:.1f}")
        tables.append(table)
    return tables


if __name__ == "__main__":
    main()
