"""The option that says where the logs of a job are, and whether they can be read now."""

from __future__ import annotations

from pathlib import Path

import click

from taskd import file_thread

LOG_PATH = click.option(
    "--log-path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the logs (TASKD_LOG_PATH). Default: ./taskd_log.",
)


def check(path: Path) -> None:
    """Before it is read: raises ClickException if its file system does not answer."""
    try:
        file_thread.check(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None
