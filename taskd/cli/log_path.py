"""The option that says where the logs of a job are."""

from __future__ import annotations

from pathlib import Path

import click

LOG_PATH = click.option(
    "--log-path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the logs (TASKD_LOG_PATH). Default: ./taskd_log.",
)
