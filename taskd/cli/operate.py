"""A connection to the job that the environment names, for commands that send it requests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from taskd import settings

if TYPE_CHECKING:
    from taskd.control import Control


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
