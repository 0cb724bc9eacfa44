"""`taskd pause`, `taskd continue` and `taskd recovery`."""

from __future__ import annotations

import click

from taskd.cli.operate import connected, of_job


@click.command()
@of_job
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Seconds until the request is withdrawn.",
)
def pause(timeout: float) -> None:
    """Stop all ranks of the job at the same step boundary. They stay alive until `taskd continue`
    lets them continue.

    The job is your only one on this machine, or the one that --job, --port, or TASKD_MANAGER_ADDR,
    TASKD_PORT, MINDX_TASK_ID and TASKD_SECRET name.
    """
    with connected() as control:
        click.echo(control.pause(timeout))


@click.command()
@of_job
def resume() -> None:
    """Let the paused ranks of the job continue."""
    with connected() as control:
        click.echo(control.resume())


@click.command()
@of_job
@click.argument("state", type=click.Choice(("on", "pause")))
def recovery(state: str) -> None:
    """Turn the repair of faults in a running job on, or pause it: process-recover-enable.

    While it is paused, the next fault ends the job, by `dump` first where that is configured. An
    incident under way is completed. The next manager of the job keeps to it.
    """
    with connected() as control:
        click.echo(control.switch_recovery(state == "on"))
