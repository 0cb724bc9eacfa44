"""`taskd demo`: the command and its output. taskd/demo has the training and the comparison."""

from __future__ import annotations

import importlib.util
import random
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from taskd.demo import records
    from taskd.demo.stage import Stage

REPORT = Path("taskd_log", "demo-report.html")
RANKS = 4
STEPS = 240
PHASES = ("DETECT", "INTERRUPT", "REPLACE", "REBUILD", "RESTORE", "RESUME")


@dataclass
class Fault:
    """A kill, its recovery, and the manager's journal entry about it."""

    kill: records.Kill
    recovery: records.Recovery | None = None
    incident: dict[str, Any] | None = None


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
    rank: int | None, kills: int, seed: int | None, keep: bool, report: Path, steps: int
) -> None:
    """Train a small GPT with 4 ranks on this machine, kill one of them with SIGKILL, and compare
    with an undisturbed run. Ends with a report of the disturbed run, as `taskd report` writes it.

    Takes about a minute. Exit code 0: the rank was replaced while the others stayed, no step was
    lost, and every loss and every parameter is equal to the undisturbed run's, bit for bit.
    """
    for module in ("torch", "rich"):
        if importlib.util.find_spec(module) is None:
            raise click.UsageError(f"taskd demo needs {module}: pip install {module}")
    if kills * 5 > steps:
        raise click.UsageError(
            f"--kills {kills} is too many for {steps} steps: allowed is one per 5 steps"
        )
    from rich.console import Console

    console = Console()
    seed = random.SystemRandom().randrange(10_000) if seed is None else seed
    work = Path(tempfile.mkdtemp(prefix="taskd-demo-"))
    # as an exception, so that the runs are ended too
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = False
    try:
        failed = not _play(console, work, rank, kills, seed, steps)
        _report(console, work / "protected" / "log", report)
    except KeyboardInterrupt:
        console.print("interrupted")
        sys.exit(128 + signal.SIGINT)
    except Exception:
        failed = True
        raise
    finally:
        if keep or failed:
            console.print(
                f"records, output and logs of both runs: {work}",
                soft_wrap=True,
                markup=False,
                highlight=False,
            )
        else:
            shutil.rmtree(work, ignore_errors=True)
    sys.exit(int(failed))


def _play(
    console: Console, work: Path, rank: int | None, kills: int, seed: int, steps: int
) -> bool:
    """Do both runs, and print the table and the verdict."""
    from taskd.demo import records
    from taskd.demo.stage import Broken, Stage

    begun = time.monotonic()
    console.print(
        f"A small GPT, {RANKS} ranks, {steps} steps, twice: undisturbed, then with kill -9 of a"
        f" rank. Seed {seed}.",
        highlight=False,
    )
    faults: list[Fault] = []
    name = "undisturbed run"
    try:
        with Stage(work / "reference", RANKS, steps, protected=False) as stage:
            _watch(console, stage, "undisturbed, torchrun", [], None)
            reference = stage.read()
        name = "protected run"
        with Stage(work / "protected", RANKS, steps, protected=True) as stage:
            faults = _watch(
                console,
                stage,
                "disturbed, taskd run",
                _plan(kills, steps, rank, seed),
                random.Random(seed),
            )
            protected, incidents = stage.read(), stage.incidents()
    except Broken as error:
        console.print(f"[bold red]FAILED[/]: the {name} did not finish: {error}.")
        _tail(console, stage)
        return False
    for fault in faults:
        fault.incident = next(
            (i for i in incidents if fault.kill.rank in i["ranks"] and i["time"] > fault.kill.wall),
            None,
        )
    comparison = records.compare(reference, protected, steps)
    console.print(_table(faults, comparison))
    wrong = [*_wrong(faults, kills), *comparison.differences]
    for text in wrong:
        console.print(f"[red]✗[/] {text}", highlight=False)
    if wrong:
        console.print("[bold red]FAILED[/]: the disturbed run is not as required.")
        return False
    seconds = time.monotonic() - begun
    console.print(
        "[bold green]EQUAL[/]: after kill -9 the curve is bit for bit that of the undisturbed run."
        f" {seconds:.0f} s in all.",
        highlight=False,
    )
    return True


def _report(console: Console, logs: Path, path: Path) -> None:
    """Write the report of the disturbed run, and print where it is. Without it the demo is no less
    true."""
    from taskd.cli.report import assumed_account, find, write

    if not logs.is_dir():  # that run was not begun
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(assumed_account(find(logs)[0]), path, None)
    except OSError as error:
        console.print(f"no report: {path} cannot be written: {error.strerror}", markup=False)
    except click.ClickException as error:
        console.print(f"no report: {error.message}", markup=False)
    else:
        text = f"What happened, as a page: {path.absolute().as_uri()}"
        console.print(text, soft_wrap=True, markup=False, highlight=False)


def _plan(kills: int, steps: int, rank: int | None, seed: int) -> list[tuple[int, int]]:
    """(after which step, which rank) of each kill."""
    from taskd.demo.stage import kill_points

    dice = random.Random(seed)
    return [
        (point, dice.randrange(RANKS) if rank is None else rank)
        for point in kill_points(kills, steps, dice)
    ]


def _watch(
    console: Console,
    stage: Stage,
    title: str,
    plan: list[tuple[int, int]],
    dice: random.Random | None,
) -> list[Fault]:
    """Show the run's progress until it ends; send the planned kills on the way."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from taskd.demo import records

    faults: list[Fault] = []
    waiting = list(plan)
    columns = (
        TextColumn("{task.description:24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=stage.steps, loss="-")

        def look(found: list[records.Record]) -> None:
            step = min(r.step for r in found)
            if step >= 0:
                losses = [float.fromhex(next(iter(r.losses[step]))) for r in found]
                progress.update(task, completed=step + 1, loss=f"{sum(losses) / len(losses):.3f}")
            if faults and faults[-1].recovery is None:
                recovery = faults[-1].recovery = records.recovery(found, faults[-1].kill)
                if recovery is not None:
                    progress.console.print(
                        f"  rank {faults[-1].kill.rank} is pid"
                        f" {recovery.after[faults[-1].kill.rank]} now; all ranks have finished step"
                        f" {recovery.step}, {recovery.seconds * 1e3:.0f} ms after the kill",
                        highlight=False,
                    )
            elif waiting and dice is not None and step >= waiting[0][0]:
                _, rank = waiting.pop(0)
                # anywhere in a step, not only right after its end
                time.sleep(dice.random() * _step_time(found))
                kill = stage.kill(rank)
                if kill is not None:
                    faults.append(Fault(kill))
                    progress.console.print(
                        f"  [bold red]kill -9[/] of rank {rank}, pid {kill.pid}, around step"
                        f" {step + 1}",
                        highlight=False,
                    )

        stage.watch(look)
    return faults


def _step_time(found: list[records.Record]) -> float:
    commits = found[0].commits[-5:]
    return (commits[-1].at - commits[0].at) / 1e9 / max(len(commits) - 1, 1)


def _wrong(faults: list[Fault], kills: int) -> list[str]:
    """What went wrong, apart from unequal numbers."""
    wrong = []
    if len(faults) != kills:
        wrong.append(f"{len(faults)} of {kills} kills were carried out")
    for fault in faults:
        kill, recovery = fault.kill, fault.recovery
        name = f"kill of rank {kill.rank}, pid {kill.pid}"
        if recovery is None:
            wrong.append(f"{name}: the ranks did not train on")
            continue
        if recovery.lost:
            wrong.append(f"{name}: {recovery.lost} finished steps had to be done again")
        if recovery.kept(kill.rank) != RANKS - 1:
            wrong.append(
                f"{name}: only {recovery.kept(kill.rank)} of {RANKS - 1} survivors are the same"
                " process as before"
            )
        if recovery.after[kill.rank] == kill.pid:
            wrong.append(f"{name}: it is still the same process")
        if fault.incident is None:
            wrong.append(f"{name}: it is not in the manager's journal")
    return wrong


def _table(faults: list[Fault], comparison: records.Comparison) -> Any:
    from rich.table import Table

    table = Table(
        title="What the kill cost" if len(faults) == 1 else "What the kills cost", show_header=False
    )
    table.add_column(style="bold")
    for _ in range(max(len(faults), 1)):
        table.add_column(justify="right")

    def row(name: str, *cells: str, line: bool = False) -> None:
        table.add_row(name, *cells, end_section=line)

    row("fault", *("kill -9" for _ in faults))
    row("rank", *(str(f.kill.rank) for f in faults))
    row("strategy", *(f.incident["strategy"] if f.incident else "-" for f in faults), line=True)
    for phase in PHASES:
        row(phase, *(_phase(f, phase) for f in faults))
    row(
        "kill to next step",
        *(_ms(f.recovery.seconds) if f.recovery else "-" for f in faults),
        line=True,
    )
    row("steps lost", *(str(f.recovery.lost) if f.recovery else "-" for f in faults))
    row(
        "surviving processes kept",
        *(f"{f.recovery.kept(f.kill.rank)} of {RANKS - 1}" if f.recovery else "-" for f in faults),
    )
    row("processes replaced", *(_replaced(f) for f in faults), line=True)
    verdict = "[green]equal[/]" if comparison.equal else "[red]NOT equal[/]"
    row(f"{comparison.losses} losses", verdict)
    row(f"{comparison.hashes} hashes of the parameters", verdict)
    return table


def _phase(fault: Fault, phase: str) -> str:
    if fault.incident is None:
        return "-"
    seconds: float = fault.incident["phases"].get(phase, 0.0)
    # the manager's clock starts when it is notified of the death; the kill was earlier
    if phase == "DETECT":
        seconds += fault.incident["began"] - fault.kill.wall
    return _ms(seconds)


def _replaced(fault: Fault) -> str:
    if fault.recovery is None:
        return "-"
    before, after = fault.recovery.before, fault.recovery.after
    pids = [f"{b} → {a}" for b, a in zip(before, after, strict=True) if b != a]
    return f"{len(pids)} ({', '.join(pids)})"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _tail(console: Console, stage: Stage) -> None:
    """Print the end of the run's output, which usually says why."""
    lines = stage.output.read_text(errors="replace").splitlines()[-15:]
    console.print("\n".join(lines), markup=False, highlight=False, style="dim")
