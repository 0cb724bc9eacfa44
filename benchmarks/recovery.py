"""The time from kill -9 of one rank until all ranks train on, beside plain torchrun; alternating in
one run.

    python benchmarks/recovery.py [--quick | --full] [--json FILE]

1. 4 ranks under taskd run, steps of ~20 ms (benchmarks/toy.py): a random rank is killed at a random
moment.
2. The same with 4 GiB of touched memory in the victim, which the kernel must free.
3. In the same job, faults that need no new process, hangs and pauses (benchmarks/online.py says how
each is timed).
4. Ranks blocked in an all_reduce: from the kill of one until each of the others has left
(benchmarks/blocked.py).
5. The same script under plain torchrun, which restarts all ranks from a checkpoint in shared
memory, saved every 10th step.

All but 4 alternate in rounds, so that a busy moment of the machine affects all of them. 1, 2 and 5
measure the same time: from the kill until every rank has committed the first step that the killed
process did not. Exit status 1 if a step was lost, a survivor was replaced, or a job failed.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import blocked
import online
import psutil
from figures import Figures
from jobs import Failed, Recovery, Run, at_random, end_cleanly, machine, ms, summary, wait_for_quiet
from rich.console import Console
from rich.text import Text

BALLAST = 4  # GiB
PHASES = ("DETECT", "INTERRUPT", "REPLACE", "REBUILD", "RESTORE", "RESUME")
# rounds; per round: kills, kills with ballast, faults of each kind in online.py, kills of torchrun;
# repetitions of each blocked case with 4 and with 8 ranks
SCALE = {
    "quick": (1, 3, 1, 1, 1, 1, 1),
    "normal": (5, 4, 1, 3, 1, 4, 2),
    "full": (10, 5, 1, 3, 1, 10, 5),
}


def protected(
    directory: Path,
    kills: int,
    heavy: int,
    others: int,
    dice: random.Random,
    port: int,
    found: dict[str, list[online.Figure]],
) -> tuple[list[Recovery], list[Recovery]]:
    """One job under taskd: `others` faults of each kind in online.py, `kills` kills, then `heavy`
    kills of a rank with ballast."""
    light: list[Recovery] = []
    ballasted: list[Recovery] = []
    with Run(directory, 4, taskd=True, port=port) as run:
        run.wait_for_steps(60)
        online.measure(run, others, dice, found)
        run.wait_for_steps(10)
        for number in range(kills + heavy):
            rank, known = dice.randrange(4), len(run.incidents())
            if number >= kills:
                run.ballast(rank, BALLAST)
            at_random(dice)
            recovery = run.recover(run.kill(rank))
            recovery.phases.update(run.phases(recovery.kill, known + 1))
            (light if number < kills else ballasted).append(recovery)
            run.wait_for_steps(10)
    return light, ballasted


def plain(directory: Path, kills: int, dice: random.Random) -> list[Recovery]:
    """One job under plain torchrun, with a checkpoint where reading and writing it costs least."""
    found = []
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as fast,
        Run(directory, 4, taskd=False, arguments=["--checkpoint", f"{fast}/checkpoint"]) as run,
    ):
        run.wait_for_steps(60)
        for _ in range(kills):
            at_random(dice)
            found.append(run.recover(run.kill(dice.randrange(4))))
            run.wait_for_steps(10)
    return found


def collectives(
    directory: Path, world: int, repetitions: int, dice: random.Random, port: int
) -> dict[int, list[list[float]]]:
    """For each size and kill, the seconds after which each survivor had left."""
    steps = world * len(blocked.SIZES) * repetitions
    found: dict[int, list[list[float]]] = {size: [] for size in blocked.SIZES}
    with Run(
        directory,
        world,
        taskd=True,
        script="blocked.py",
        arguments=["--steps", str(steps)],
        port=port,
    ) as run:
        board = blocked.Board(directory, world, steps)
        for step in range(steps):
            victim = blocked.victim(step, world)
            run.wait(
                lambda s=step: all(board.read(s, r)[0] for r in range(world)),
                f"all ranks in the collective of step {step}",
            )
            time.sleep(dice.uniform(0.02, 0.08))
            board.kill(step)
            kill = run.kill_pid(victim, board.read(step, victim)[2])
            survivors = [r for r in range(world) if r != victim]
            run.wait(
                lambda s=step, them=survivors: all(board.read(s, r)[1] for r in them),
                f"the survivors to leave step {step}",
            )
            found[blocked.size(step, world)].append(
                [(board.read(step, r)[1] - kill.at) / 1e9 for r in survivors]
            )
        run.finish()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick",
        action="store_const",
        const="quick",
        dest="scale",
        default="normal",
        help="one round, as a check that it works",
    )
    parser.add_argument(
        "--full", action="store_const", const="full", dest="scale", help="10 rounds"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write every single figure to FILE"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="of the manager; default: a free one")
    parser.add_argument(
        "--patience",
        type=float,
        default=0,
        help="seconds to wait for a quiet machine before each round",
    )
    parser.add_argument("--keep", action="store_true", help="keep the jobs' output and logs")
    args = parser.parse_args()
    end_cleanly()
    rounds, kills, heavy, others, restarts, four, eight = SCALE[args.scale]
    console = Console()
    dice = random.Random(args.seed)
    work = Path(tempfile.mkdtemp(prefix="taskd-recovery-"))
    if psutil.virtual_memory().available < (BALLAST + 4) << 30:
        console.print(
            f"less than {BALLAST + 4} GiB of memory are free: the kills with ballast are skipped"
        )
        heavy = 0
    begin = machine()
    light: list[Recovery] = []
    ballasted: list[Recovery] = []
    restarted: list[Recovery] = []
    left: dict[int, dict[int, list[list[float]]]] = {}
    figures: dict[str, list[online.Figure]] = {name: [] for name in online.ROWS}
    try:
        for number in range(rounds):
            busy = wait_for_quiet(args.patience)
            console.print(
                f"round {number + 1} of {rounds}; other work takes {busy:.0f} % of the machine",
                style="dim",
            )
            one, two = protected(
                work / f"taskd-{number}", kills, heavy, others, dice, args.port, figures
            )
            light, ballasted = light + one, ballasted + two
            restarted += plain(work / f"torchrun-{number}", restarts, dice)
        for world, repetitions in ((4, four), (8, eight)):
            console.print(f"collectives of {world} ranks", style="dim")
            left[world] = collectives(
                work / f"blocked-{world}", world, repetitions, dice, args.port
            )
    except Failed as error:
        console.print(Text(f"failed: {error}", style="red"))
        sys.exit(1)
    if args.keep:
        console.print(f"output and logs: {work}")
    else:
        shutil.rmtree(work)
    console.print(
        recoveries(
            {
                "taskd": light,
                f"taskd, {BALLAST} GiB in the victim": ballasted,
                "torchrun, checkpoint each 10 steps": restarted,
            }
        )
    )
    ratio = (
        summary([r.seconds for r in restarted])["median"]
        / summary([r.seconds for r in light])["median"]
    )
    console.print(f"median of torchrun / median of taskd: {ratio:.1f}")
    console.print(breakdown({"taskd": light, f"taskd, {BALLAST} GiB in the victim": ballasted}))
    console.print(online.table(figures))
    console.print(online.steps_of_pauses(figures))
    console.print(leaving(left))
    if args.json:
        write(args.json, begin, light, ballasted, restarted, left, figures)
    faithful = all(r.lost == 0 and r.kept for r in light + ballasted)
    if not faithful:
        console.print("[bold red]a step was lost or a survivor was replaced[/]")
    sys.exit(not faithful)


def recoveries(series: dict[str, Sequence[Recovery]]) -> Figures:
    table = Figures(
        "kill -9 to the next step of all ranks, ms (lost: steps; kept: survivors)",
        "",
        "kills",
        "median",
        "least",
        "90 %",
        "worst",
        "usual step",
        "lost",
        "kept",
    )
    for name, found in series.items():
        if found:
            s, step = (
                summary([r.seconds for r in found]),
                summary([r.step for r in found])["median"],
            )
            lost = [r.lost for r in found]
            cells = [
                str(s["count"]),
                *(ms(s[k]) for k in ("median", "least", "p90", "worst")),
                ms(step),
            ]
            cells.append(f"{min(lost)}-{max(lost)}" if max(lost) else "0")
            table.add_row(name, *cells, "yes" if all(r.kept for r in found) else "no")
    return table


def breakdown(series: dict[str, Sequence[Recovery]]) -> Figures:
    table = Figures("where the time goes: median (worst) of each phase, ms", "", *PHASES)
    for name, found in series.items():
        if found:
            cells = [summary([r.phases.get(phase, 0.0) for r in found]) for phase in PHASES]
            table.add_row(name, *(f"{ms(c['median'])} ({ms(c['worst'])})" for c in cells))
    return table


def leaving(left: dict[int, dict[int, list[list[float]]]]) -> Figures:
    table = Figures(
        "kill -9 to leaving a blocked all_reduce, ms",
        "ranks",
        "bytes",
        "kills",
        "first survivor, median",
        "last survivor, median",
        "last survivor, worst",
        words=0,
    )
    for world, sizes in left.items():
        for size, found in sizes.items():
            first, last = summary([min(f) for f in found]), summary([max(f) for f in found])
            table.add_row(
                str(world),
                f"{size:,}",
                str(len(found)),
                ms(first["median"]),
                ms(last["median"]),
                ms(last["worst"]),
            )
    return table


def write(
    path: Path,
    begin: dict[str, Any],
    light: list[Recovery],
    ballasted: list[Recovery],
    restarted: list[Recovery],
    left: Any,
    figures: dict[str, list[online.Figure]],
) -> None:
    def rows(found: list[Recovery]) -> list[dict[str, Any]]:
        return [
            {
                "rank": r.kill.rank,
                "seconds": r.seconds,
                "step": r.step,
                "lost": r.lost,
                "kept": r.kept,
                "phases": r.phases,
            }
            for r in found
        ]

    data = {
        "machine": begin,
        "load_at_end": machine()["load"],
        "taskd": rows(light),
        "ballast": rows(ballasted),
        "torchrun": rows(restarted),
        "leaving": left,
        "online": {name: [asdict(f) for f in found] for name, found in figures.items()},
    }
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
