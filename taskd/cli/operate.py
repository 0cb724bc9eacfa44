"""A connection to the job that the environment names, for the commands that ask something of it."""

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
    """Every way in which it can fail is one line and exit status 1; what the environment has wrong,
    2."""
    # here, because `taskd --help` must not wait for ZeroMQ
    from taskd.control import Control, ControlError
    from taskd.protocol.keys import BadSecret

    try:
        control = Control()
    except ControlError as error:
        raise click.ClickException(str(error)) from None
    except (settings.BadSetting, BadSecret) as error:
        raise click.UsageError(str(error)) from None
    with control:
        try:
            yield control
        except ControlError as error:
            raise click.ClickException(str(error)) from None
