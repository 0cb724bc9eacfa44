"""A connection to the job that the environment names, for commands that send it requests."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from taskd import settings

if TYPE_CHECKING:
    from taskd.control import Control


F = TypeVar("F", bound=Callable[..., Any])


def _names(variable: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def name(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> None:
        if value is not None:
            os.environ[variable] = str(value)

    return name


def of_job(command: F) -> F:
    """Add the options that name the job."""
    port = click.option(
        "--port",
        type=click.IntRange(1, 65535),
        expose_value=False,
        callback=_names("TASKD_PORT"),
        help="The job whose manager has this port (TASKD_PORT).",
    )
    job = click.option(
        "--job",
        metavar="ID",
        expose_value=False,
        callback=_names("MINDX_TASK_ID"),
        help="The job of this id (MINDX_TASK_ID). Default: your only job on this machine.",
    )
    return job(port(command))


@contextmanager
def connected() -> Iterator[Control]:
    """Connect to the job. A failed request ends with one line and exit status 1, a bad environment
    with 2."""
    # here, because `taskd --help` must not wait for ZeroMQ
    from taskd.control import Control, ControlError
    from taskd.protocol.keys import BadSecret

    try:
        control = Control(waits=lambda text: click.echo(text, err=True))
    except ControlError as error:
        raise click.ClickException(str(error)) from None
    except (settings.BadSetting, BadSecret) as error:
        raise click.UsageError(str(error)) from None
    with control:
        try:
            yield control
        except ControlError as error:
            raise click.ClickException(str(error)) from None
