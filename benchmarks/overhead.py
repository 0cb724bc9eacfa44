"""The cost of protection while nothing fails.

    python benchmarks/overhead.py [--blocks 6] [--steps 200] [--json FILE]

1. Jobs of benchmarks/toy.py, 4 ranks, alternating between taskd run and plain torchrun: the median
step of each.
2. One job under taskd that alternates between steps inside and outside attempts. It misses what
differs between jobs (the preloaded library, the agent's checks), and most of the machine's noise,
which on shared cores is larger than the effect.
3. An attempt in one rank, in us: empty and repeated at once, and with a step's work that evicts the
caches; and where the time goes by cProfile, whose own cost makes short functions look slow.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from figures import Figures
from jobs import Failed, Run, end_cleanly, machine, wait_for_quiet
from rich.console import Console
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


def block(directory: Path, taskd: bool, steps: int, port: int) -> Step:
    """The median step of one job."""
    with Run(directory, 4, taskd, arguments=["--steps", str(steps + WARM)], port=port) as run:
        run.finish()
        return median_step([s.read(WARM) for s in run.steps])


def by_turns(directory: Path, steps: int, port: int) -> tuple[list[Step], list[Step]]:
    """Medians of the blocks of steps (inside, outside) of attempts."""
    inside, outside = [], []
    with Run(
        directory,
        4,
        True,
        arguments=["--steps", str(steps), "--every-other", str(BY_TURNS)],
        port=port,
    ) as run:
        run.finish()
        ranks = [s.read() for s in run.steps]
    for first in range(2 * BY_TURNS, len(ranks[0]) - BY_TURNS + 1, BY_TURNS):
        part = [records[first : first + BY_TURNS] for records in ranks]
        (outside if part[0][0][0] < 0 else inside).append(median_step(part))
    return inside, outside


def plain(steps: list[Step]) -> list[dict[str, float]]:
    return [asdict(s) for s in steps]


def attempts(directory: Path, model: str, port: int) -> dict[str, Any]:
    with Run(
        directory, 1, True, script="attempt.py", arguments=["--model", model], port=port
    ) as run:
        run.finish()
        result: dict[str, Any] = json.loads((directory / "result.json").read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=6, help="jobs of each kind")
    parser.add_argument("--steps", type=int, default=200, help="steps of each job")
    parser.add_argument("--only", choices=("jobs", "turns", "attempt"))
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure to FILE"
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        help="seconds to wait for a quiet machine before each block",
    )
    parser.add_argument("--port", type=int, default=0, help="of the manager; default: a free one")
    args = parser.parse_args()
    end_cleanly()
    console = Console()
    work = Path(tempfile.mkdtemp(prefix="taskd-overhead-"))
    figures: dict[str, Any] = {"machine": machine()}
    try:
        if args.only in (None, "attempt"):
            figures["attempt"] = {
                model: attempts(work / model, model, args.port) for model in ("tiny", "toy")
            }
            show_attempts(console, figures["attempt"])
        if args.only in (None, "turns"):
            inside, outside = by_turns(work / "turns", args.blocks * args.steps, args.port)
            figures["turns"] = {"inside": plain(inside), "outside": plain(outside)}
            show_steps(
                console,
                "one job, inside and outside of attempts",
                "inside",
                inside,
                "outside",
                outside,
            )
        if args.only in (None, "jobs"):
            times: dict[bool, list[Step]] = {True: [], False: []}
            for number in range(args.blocks):
                busy = wait_for_quiet(args.patience)
                console.print(
                    f"block {number + 1} of {args.blocks}; other work takes {busy:.0f} % of the"
                    " machine",
                    style="dim",
                )
                for taskd in (number % 2 == 0, number % 2 == 1):  # neither kind is always the first
                    times[taskd].append(
                        block(work / f"{number}-{taskd}", taskd, args.steps, args.port)
                    )
            figures["jobs"] = {"taskd": plain(times[True]), "torchrun": plain(times[False])}
            show_steps(console, "jobs by turns", "taskd run", times[True], "torchrun", times[False])
    except Failed as error:
        console.print(Text(f"failed: {error}", style="red"))
        sys.exit(1)
    shutil.rmtree(work)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


def show_steps(
    console: Console, title: str, name: str, with_taskd: list[Step], other: str, without: list[Step]
) -> None:
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
    for label, steps in ((name, with_taskd), (other, without)):
        cells = [str(len(steps))]
        for values in ([s.clock for s in steps], [s.cpu for s in steps]):
            cells += [f"{v:.3f}" for v in (statistics.median(values), min(values), max(values))]
        table.add_row(label, *cells)
    console.print(table)
    for what in ("clock", "cpu"):
        a, b = (
            statistics.median(getattr(s, what) for s in steps) for steps in (with_taskd, without)
        )
        console.print(
            f"difference of the medians, {what}: {(a - b) * 1e3:+.0f} us, {(a - b) / b:+.2%}"
        )


def show_attempts(console: Console, found: dict[str, Any]) -> None:
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
    console.print(table)
    for model, result in found.items():
        table = Figures(
            f"an empty attempt of the {model} model by cProfile: own time, us",
            "function",
            "calls",
            "us",
        )
        for own, calls, name in result["profile"]:
            table.add_row(Text(name), f"{calls:.1f}", f"{own:.1f}")
        console.print(table)


if __name__ == "__main__":
    main()
