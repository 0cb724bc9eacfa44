"""`taskd pause` and `taskd continue`."""

from __future__ import annotations

import click

from taskd.cli.operate import connected


@click.command()
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds until it is taken back.",
)
def pause(timeout: float) -> None:
    """Stop all ranks of the job at the same step boundary. They stay alive, and go on at `taskd
    continue`.

    The job is the one that TASKD_MANAGER_ADDR (or TASKD_PORT), MINDX_TASK_ID and TASKD_SECRET name.
    """
    with connected() as control:
        click.echo(control.pause(timeout))


@click.command()
def resume() -> None:
    """Let the ranks of the job that were paused go on."""
    with connected() as control:
        click.echo(control.resume())


@click.command()
@click.argument("state", type=click.Choice(("on", "pause")))
def recovery(state: str) -> None:
    """Have faults of a running job repaired, or not for a while: process-recover-enable.

    While it is paused the next fault ends the job, by `dump` first where that is configured. An
    incident under way is brought to its end. A new manager does not know of it: under it faults are
    repaired again.
    """
    with connected() as control:
        click.echo(control.switch_recovery(state == "on"))
