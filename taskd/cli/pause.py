"""`taskd pause` and `taskd continue`."""

from __future__ import annotations

import click

from taskd.cli.operate import connected


@click.command()
@click.option("--timeout", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Seconds until it is taken back.")
def pause(timeout: float) -> None:
    """Stop all ranks of the job at the same step boundary. They stay alive, and go on at `taskd continue`.

    The job is the one that TASKD_MANAGER_ADDR (or TASKD_PORT), MINDX_TASK_ID and TASKD_SECRET name.
    """
    with connected() as control:
        click.echo(control.pause(timeout))


@click.command()
def resume() -> None:
    """Let the ranks of the job that were paused go on."""
    with connected() as control:
        click.echo(control.resume())
