"""`taskd demo`: trains a small GPT twice, once undisturbed and once with kill -9 of a rank, and
compares every number.

`train.py` is the training script and an example of one; it alone imports torch. `records.py` has
the ranks' records and their comparison, `run.py` starts and watches the jobs.
"""

from __future__ import annotations

import importlib.util
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from taskd.cli.demo import records
from taskd.cli.demo.run import Broken, Run

REPORT = Path("taskd_log", "demo-report.html")
RANKS = 4
STEPS = 120


@click.command()
@click.option(
    "--rank", type=click.IntRange(0, RANKS - 1), help="The rank to kill. Default: a random one."
)
@click.option(
    "--kills", type=click.IntRange(1, 10), default=1, show_default=True, help="How many times."
)
@click.option(
    "--seed",
    type=int,
    help=(
        "Repeats an earlier run's choice of rank and moment. Default: a new one, which is printed."
    ),
)
@click.option(
    "--keep", is_flag=True, help="Keep the records and logs of both runs, and print where they are."
)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    default=REPORT,
    show_default=True,
    help="Where the report of the disturbed run is written, a page for the browser.",
)
@click.option("--steps", type=click.IntRange(10), default=STEPS, hidden=True)
def command(
    rank: int | None,
    kills: int,
    seed: int | None,
    keep: bool,
    report: Path,
    steps: int,
) -> None:
    """Train a small GPT with 4 ranks on this machine, kill one of them with SIGKILL, and compare
    with an undisturbed run. Ends with a report of the disturbed run, as `taskd report` writes it.

    Takes about a minute. Exit code 0: the rank was replaced while the others stayed, no step was
    lost, and every loss and every parameter is equal to the undisturbed run's, bit for bit.
    """
    if importlib.util.find_spec("torch") is None:
        raise click.UsageError("taskd demo needs torch: pip install torch")
    if kills * 5 > steps:
        raise click.UsageError(
            f"--kills {kills} is too many for {steps} steps: allowed is one per 5 steps"
        )
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    work = Path(tempfile.mkdtemp(prefix="taskd-demo-"))
    # as an exception, so that the runs are ended too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    equal = False
    try:
        equal = _play(work, rank, kills, seed, steps)
        _report(work / "disturbed" / "log", report)
    except KeyboardInterrupt:
        click.echo("interrupted")
        sys.exit(128 + signal.SIGINT)
    finally:
        if keep or not equal:
            click.echo(f"records, output and logs of both runs: {work}")
        else:
            shutil.rmtree(work, ignore_errors=True)
    sys.exit(int(not equal))


def _play(work: Path, rank: int | None, kills: int, seed: int, steps: int) -> bool:
    """Do both runs and print their progress; return whether they are equal and the repairs as
    required."""
    begun, dice = time.monotonic(), random.Random(seed)
    click.echo(
        f"A small GPT is trained twice, by {RANKS} processes (ranks) on this machine, for"
        f" {steps} steps each. Seed {seed}.\n"
        "1. Undisturbed, under torchrun without taskd: what the other run has to equal. The"
        " processes start: some seconds."
    )
    name = "undisturbed"
    try:
        with Run(work / name, RANKS, steps, None) as run:
            _follow(run, name, [], dice)
            reference = run.read()
        name = "disturbed"
        several = "a process" if kills == 1 else f"a process {kills} times"
        click.echo(
            f"2. Disturbed, under taskd run: {several} gets kill -9 at a random moment. taskd"
            " starts another one in its place, gives it the state, and repeats the step; the"
            " others stay."
        )
        with Run(work / name, RANKS, steps, kills) as run:
            wrong = _follow(run, name, _plan(kills, steps, rank, dice), dice)
            found = run.read()
    except Broken as error:
        click.echo(f"FAILED: the {name} run did not finish: {error}. Its output ends with:")
        click.echo("\n".join(run.output.read_text(errors="replace").splitlines()[-15:]))
        return False
    click.echo("3. Every loss of every step and rank, and all parameters at the end, are compared.")
    wrong += records.compare(reference, found, steps)
    for text in wrong:
        click.echo(f"wrong: {text}")
    if wrong:
        click.echo("FAILED: the disturbed run is not as required.")
        return False
    click.echo(
        f"EQUAL: {RANKS * steps} losses and {RANKS} hashes of the parameters are bit for bit those"
        f" of the undisturbed run. {time.monotonic() - begun:.0f} s in all."
    )
    return True


def _plan(kills: int, steps: int, rank: int | None, dice: random.Random) -> list[tuple[int, int]]:
    """(after which step of all ranks, which rank) of each kill: at random within equal parts of the
    middle of the run."""
    first, part = 0.2 * steps, 0.6 * steps / kills
    return [
        (
            int(first + part * (kill + dice.random())),
            dice.randrange(RANKS) if rank is None else rank,
        )
        for kill in range(kills)
    ]


def _follow(run: Run, name: str, plan: list[tuple[int, int]], dice: random.Random) -> list[str]:
    """Print the run's progress until it ends; send the planned kills on the way, each when the last
    repair is over. Returns what was wrong with them."""
    wrong: list[str] = []
    waiting, reached = list(plan), 0
    kill: records.Kill | None = None

    def look(found: list[records.Record]) -> None:
        nonlocal kill, reached
        step = min(r.step for r in found)
        if step >= 0 and 4 * (step + 1) // run.steps > reached:
            reached = 4 * (step + 1) // run.steps
            losses = [float.fromhex(next(iter(r.losses[step]))) for r in found]
            loss = sum(losses) / len(losses)
            click.echo(f"{name}: {step + 1} of {run.steps} steps, loss {loss:.3f}")
        if kill is not None:
            if (repaired := records.recovery(found, kill)) is not None:
                wrong.extend(_repaired(kill, repaired))
                kill = None
        elif waiting and step >= waiting[0][0]:
            # anywhere in a step, not only right after its end
            time.sleep(dice.random() * _step_time(found[0]))
            kill = run.kill(waiting.pop(0)[1])
            click.echo(
                f"{name}: kill -9 {kill.pid}, which is rank {kill.rank}, around step {step + 1}"
            )

    run.watch(look)
    if kill is not None:
        wrong.append(f"rank {kill.rank}, pid {kill.pid}, was killed and the ranks did not train on")
    if waiting:
        wrong.append(f"{len(waiting)} of {len(plan)} kills were not sent")
    return wrong


def _step_time(record: records.Record) -> float:
    """Seconds."""
    commits = record.commits[-5:]
    return (commits[-1].at - commits[0].at) / 1e9 / max(len(commits) - 1, 1)


def _repaired(kill: records.Kill, found: records.Recovery) -> list[str]:
    """Print the result of a repair; return what is wrong with it."""
    click.echo(
        f"  rank {kill.rank} is pid {found.pid} now; all ranks have finished step {found.step},"
        f" {found.seconds * 1e3:.0f} ms after the kill; {found.kept} of {RANKS - 1} other processes"
        f" are the same, {found.lost} finished steps repeated"
    )
    wrong = []
    if found.kept != RANKS - 1:
        wrong.append(f"kill of rank {kill.rank}: only {found.kept} others are the same process")
    if found.lost:
        wrong.append(f"kill of rank {kill.rank}: {found.lost} finished steps were repeated")
    return wrong


def _report(logs: Path, path: Path) -> None:
    """Write the report of the disturbed run, and print where it is. A failure does not invalidate
    the demo."""
    from taskd.cli.report import assumed_account, find, write
    from taskd.history import log_files

    if not logs.is_dir():  # that run was not begun
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        job = find(logs)[0]
        write(assumed_account(job, logs=log_files.of_incidents(logs, job)), path, None)
    except OSError as error:
        click.echo(f"no report: {path} cannot be written: {error.strerror}")
    except click.ClickException as error:
        click.echo(f"no report: {error.message}")
    else:
        click.echo(f"What happened, and what it cost: {path.absolute().as_uri()}")
