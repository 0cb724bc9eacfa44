"""`taskd status`: a job's current state and history."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from taskd import settings
from taskd.cli.log_path import LOG_PATH, check
from taskd.cli.operate import of_job
from taskd.history import files
from taskd.history.model import of_records
from taskd.history.reading import Reader, last_run

if TYPE_CHECKING:
    from taskd.control import Control
    from taskd.history.status.model import Model
    from taskd.messages.to_operator import IncidentSeen, ShrunkSeen
    from taskd.protocol import running_jobs

STARTS = 30.0  # seconds; a manager needs some two to come up
AGAIN = 0.2  # seconds between two looks for it
ANSWER = 2.0  # seconds; a manager answers in milliseconds, on a busy machine later
# exit statuses, besides 2 for bad arguments
WELL, NOTHING, FAILED, SILENT = 0, 1, 3, 4


class Unknown(click.ClickException):
    """Nothing is known of the job, or not yet."""


@click.command()
@of_job
@click.argument("journal", required=False, type=click.Path(path_type=Path))
@LOG_PATH
@click.option("--once", is_flag=True, help="Print it once. Default where there is no terminal.")
@click.option("--json", "as_json", is_flag=True, help="Print it once, as one JSON object.")
def command(journal: Path | None, log_path: Path | None, once: bool, as_json: bool) -> None:
    """Show what a job is doing now, and its incidents: what broke, what was done, how long each
    phase took, how many steps were repeated. On a terminal it is shown anew every second, and waits
    for a job that starts; its last line has the keys.

    The job's manager is asked; `taskd pause --help` says how it is found. If none answers, it is
    read from the job's journal in the log directory. For JOURNAL, a file or a directory, no manager
    is asked.

    Exit status: 0 the job is under way or has ended well, 75 its state is saved and it has ended,
    93 it has ended and would again, 3 it has ended with another error, 4 no manager answers and the
    journal does not say how the job ended, 1 nothing is known of it.
    """
    model: Model | None
    live = not (as_json or once or journal is not None) and sys.stdout.isatty()
    try:
        sight = _Sight(journal, log_path or Path(settings.log_settings(os.environ).path))
        with sight:
            if live and os.environ.get("TERM") not in ("dumb", "unknown"):
                from taskd.cli.live import show

                if (model := show(sight.poll, sight.awaited, Unknown)) is None:
                    sys.exit(NOTHING)
            else:
                model = sight.waited(as_json)
            if as_json:
                click.echo(json.dumps(model.plain, indent=1))
            else:
                _print(model)
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None
    if sight.silent:
        click.echo(f"earlier incidents are missing: {sight.silent}", err=True)
    if sight.damaged:
        click.echo(f"{sight.damaged} lines of the journal are no entries and are skipped", err=True)
    sys.exit(status(model))


def status(model: Model) -> int:
    """The exit status that says how the job is."""
    if model.end is not None and model.end.ok:
        return WELL
    if model.end is not None:
        known = {ending: settings.status_of(ending, {}) for ending in ("saved", "useless")}
        return known.get(model.end.ending, FAILED)
    return SILENT if model.source == "journal" else WELL


@dataclass
class _Sight:
    """The source of the job's state: its manager, or the journal. A context manager."""

    given: Path | None
    directory: Path
    damaged: int = 0
    silent: str = ""  # why the journal cannot be read while the manager answers
    _control: Control | None = None
    _term: int = -1  # of the manager that answered last
    # what the journal knew then: incidents, and how many ranks trained
    _before: tuple[IncidentSeen, ...] = ()
    _shrunk: ShrunkSeen | None = None
    _size: tuple[Path, int] | None = None  # of the journal that was read last
    _read: Model | None = None

    def poll(self, every: bool) -> Model:
        """What is known now. `every`: with all ranks of a large job. Raises ClickException."""
        return self._asked(every) or self._journaled()

    def waited(self, every: bool) -> Model:
        """The same, of a job that starts once its manager answers."""
        until, said = time.monotonic() + STARTS, False
        while True:
            try:
                return self.poll(every)
            except Unknown:
                if self._launcher() is None or time.monotonic() > until:
                    raise
            if not said:
                said = True
                click.echo(self.awaited(), err=True)
            # nothing tells when a manager answers for the first time
            time.sleep(AGAIN)

    def awaited(self) -> str:
        """What is waited for while nothing is known."""
        if (launcher := self._launcher()) is not None:
            return f"job {launcher} starts: waiting for its manager"
        port, name = settings.port(os.environ), settings.job(os.environ)
        return (
            f"waiting for job {name}: no launcher of yours runs on this machine, no manager answers"
            f" at port {port}, and there is no journal in {self.directory}"
        )

    def _launcher(self) -> running_jobs.Job | None:
        """Of a job on this machine that may have no manager yet."""
        from taskd.api.finding import launched

        if self.given is not None or settings.manager_is_named(os.environ):
            return None
        return next(iter(launched(os.environ)), None)

    def _asked(self, every: bool) -> Model | None:
        """By the manager; None if none answers."""
        from taskd.api.finding import SeveralJobs
        from taskd.control import Control, ControlError
        from taskd.history.status.model import of_manager
        from taskd.messages.to_operator import PAGE
        from taskd.protocol import addresses
        from taskd.protocol.keys import BadSecret

        if self.given is not None:
            return None
        # without a secret there is no job of ours to ask, or not yet; the journal may be readable
        try:
            self._control = self._control or Control()
            seen = self._control.overview(timeout=ANSWER)
            if seen.term != self._term:  # it knows only what has happened under it
                self._term = seen.term
                self._before, self._shrunk = self._known(files.path(self.directory, seen.job))
            where = addresses.text(self._control.address)
            model = of_manager(where, seen, self._before, self._shrunk)
            if every and len(model.ranks) < seen.ranks:
                pages = range(0, seen.ranks, PAGE)
                found = (self._control.ranks(at, PAGE, timeout=ANSWER) for at in pages)
                model = replace(model, ranks=tuple(chain.from_iterable(found)))
            return model
        except SeveralJobs as error:
            raise click.ClickException(str(error)) from None
        except (ControlError, BadSecret):
            return None

    def _journaled(self) -> Model:
        """By the journal. Raises Unknown and other ClickExceptions."""
        from taskd.api import finding

        newest = self._newest()
        model = self._journal(newest) if newest is not None else None
        if model is None:
            raise Unknown(
                f"no manager of your job answers, and there is no journal of it in"
                f" {self.given or self.directory}: set TASKD_MANAGER_ADDR (or TASKD_PORT),"
                " MINDX_TASK_ID and TASKD_SECRET as the job has them, or --log-path"
                f"{finding.others()}"
            )
        return model

    def _newest(self) -> Path | None:
        """The newest file of the journal to read."""
        from taskd.api import finding
        from taskd.protocol import running_jobs

        check(self.given or self.directory)
        if self.given is not None:
            return files.newest(self.given) if self.given.is_dir() else self.given
        newest = finding.journal(os.environ, self.directory)
        if newest is not None and newest.exists():
            # a launcher that has just been started again: the end is that of the run before
            port, end = last_run(newest)
            if end is not None and any(j.port == port for j in running_jobs.found()):
                return None
        return newest

    def _known(self, newest: Path) -> tuple[tuple[IncidentSeen, ...], ShrunkSeen | None]:
        """What its journal adds to what a manager says."""
        try:
            check(newest)
        except click.ClickException as error:
            self.silent = error.message
            return (), None
        self.silent, known = "", self._journal(newest)
        return ((), None) if known is None else (known.incidents, known.seen.shrunk)

    def _journal(self, newest: Path) -> Model | None:
        from taskd.history.status.model import SHOWN, of_journal

        reader = Reader()
        try:
            size = (newest, newest.stat().st_size) if newest.exists() else None
            if size is None or size != self._size:
                job = of_records(reader.files(files.of(newest)), most=SHOWN)
                self._read = of_journal(str(newest), job, time.time()) if job is not None else None
                self._size, self.damaged = size, reader.damaged
        except OSError as error:
            raise click.ClickException(f"{newest} cannot be read: {error.strerror}") from None
        model = self._read
        if model is not None:  # it grows older
            model = replace(model, age=max(time.time() - model.seen.time, 0.0))
        return model

    def __enter__(self) -> _Sight:
        return self

    def __exit__(self, *_: object) -> None:
        if self._control is not None:
            self._control.close()


def _print(model: Model) -> None:
    from rich.console import Console

    from taskd.history.status.rendering import render

    console = Console(highlight=False, soft_wrap=True)
    for line in render(model):
        console.print(line)
