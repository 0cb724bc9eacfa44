"""`taskd profile`: profiles the ranks' steps, and merges the profiles into one trace."""

from __future__ import annotations

from pathlib import Path

import click

from taskd.cli import Group
from taskd.cli.operate import connected, of_job
from taskd.cli.whole_file import whole_file
from taskd.messages.to_rank import RANGES
from taskd.profiling import merging, switches


@click.group(cls=Group)
def command() -> None:
    """Switch light profiling of a running job on and off, and make a trace of what ranks wrote."""


@command.command()
@of_job
@click.argument("ranges", nargs=-1)
def on(ranges: tuple[str, ...]) -> None:
    """Have all ranks write down RANGES: Step, DataLoader, FP (forward and backward),
    SaveCheckpoint, CommunicationOperator, or LOADER, FORWARD, CHECKPOINT, COMMUNICATION; without
    any: all of them. What was on before and is not named is off.
    """
    try:
        numbers = switches.numbers(ranges or RANGES)
    except switches.BadSwitch as error:
        raise click.UsageError(str(error)) from None
    with connected() as control:
        click.echo(control.profile(numbers))


@command.command()
@of_job
def off() -> None:
    """Have the ranks write down nothing more."""
    with connected() as control:
        click.echo(control.profile(()))


@command.command()
@click.argument("job", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default="trace.json")
def trace(job: Path, out: Path) -> None:
    """Make one trace of the profiles of all ranks in the directory JOB, for ui.perfetto.dev."""
    try:
        with whole_file(out) as file:
            count = merging.write(job, file)
    except (merging.NoProfile, OSError) as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"{count} ranges of {len(merging.ranks(job))} ranks: {out}")
