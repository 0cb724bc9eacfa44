"""The time from kill -9 of one rank until all ranks train on, beside plain torchrun; alternating in
one run.

    python benchmarks/recovery.py [--rounds 5] [--patience 15] [--json FILE]

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

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import blocked
import online
import psutil
from arguments import Arguments
from figures import Figures, ms, publish, summary
from jobs import Recovery, Run, breakdown, recoveries, wait_for_quiet

BALLAST = 4  # GiB


def plain(directory: Path, ranks: int, kills: int, dice: random.Random) -> list[Recovery]:
    """One job under plain torchrun, with a checkpoint where reading and writing it costs least."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as fast,
        Run(directory, ranks, False, arguments=["--checkpoint", f"{fast}/checkpoint"]) as run,
    ):
        run.wait_for_steps(60)
        return run.kills(kills, dice)


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
    parser = Arguments(__doc__)
    parser.size("--rounds", 5, 1)
    parser.size("--ranks", 4, 2, help="in the blocked collectives also twice as many")
    parser.size("--kills", 4, 1, help="per round, of ranks under taskd")
    parser.size("--heavy", 1, 0, help=f"per round, of ranks with {BALLAST} GiB")
    parser.size("--others", 3, 1, help="per round, of each kind in online.py")
    parser.size("--restarts", 1, 1, help="per round, under torchrun")
    parser.size("--blocked", 4, 1, help="of each rank and size, in a blocked collective")
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
    dice = random.Random(args.seed)
    work = Path(tempfile.mkdtemp(prefix="taskd-recovery-"))
    if psutil.virtual_memory().available < (BALLAST + 4) << 30:
        print(f"less than {BALLAST + 4} GiB of memory are free: no kills with ballast")
        args.heavy = 0
    names = ("taskd", f"taskd, {BALLAST} GiB in the victim", "torchrun, checkpoint each 10 steps")
    found: dict[str, list[Recovery]] = {name: [] for name in names}
    light, ballasted, restarted = found.values()
    left: dict[int, dict[int, list[list[float]]]] = {}
    figures: dict[str, list[online.Figure]] = {name: [] for name in online.ROWS}
    for number in range(args.rounds):
        busy = wait_for_quiet(args.patience)
        print(f"round {number + 1} of {args.rounds}; other work takes {busy:.0f} % of the machine")
        with Run(work / f"taskd-{number}", args.ranks, taskd=True, port=args.port) as run:
            run.wait_for_steps(60)
            online.measure(run, args.others, dice, figures)
            run.wait_for_steps(10)
            light += run.kills(args.kills, dice)
            ballasted += run.kills(args.heavy, dice, BALLAST)
        restarted += plain(work / f"torchrun-{number}", args.ranks, args.restarts, dice)
    for world, times in ((args.ranks, args.blocked), (2 * args.ranks, args.blocked // 2)):
        if times:
            print(f"collectives of {world} ranks")
            left[world] = collectives(work / f"blocked-{world}", world, times, dice, args.port)
    if args.keep:
        print(f"output and logs: {work}")
    else:
        shutil.rmtree(work)
    publish(
        args.json,
        recoveries(found),
        breakdown({name: found[name] for name in names[:2]}),
        online.table(figures),
        online.steps_of_pauses(figures),
        leaving(left),
        kills=found,
        leaving=left,
        online=figures,
    )
    if not all(r.lost == 0 and r.kept for r in light + ballasted):
        sys.exit("a step was lost or a survivor was replaced")


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


if __name__ == "__main__":
    main()
