"""`taskd dump` and `taskd stop`."""

from __future__ import annotations

import click

from taskd.cli.operate import connected, of_job

timeout = click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=1200.0,
    show_default=True,
    help="Seconds to wait for the result.",
)


@click.command()
@of_job
@timeout
def dump(timeout: float) -> None:
    """Save the job's state at a step boundary, in its dump directory, and train on.

    The job is your only one on this machine, or the one that --job, --port, or TASKD_MANAGER_ADDR,
    TASKD_PORT, MINDX_TASK_ID and TASKD_SECRET name. `taskd run --resume auto` goes on from the
    newest dump.
    """
    with connected() as control:
        click.echo(control.dump(timeout))


@click.command()
@of_job
@timeout
def stop(timeout: float) -> None:
    """Save the job's state at a step boundary, in its dump directory, and end the job.

    Its launchers leave with exit status 75 (TASKD_STATUS_SAVED). The same command with --resume
    auto goes on from there.
    """
    with connected() as control:
        click.echo(control.stop(timeout))
