"""`taskd report`: what happened to a job, what it cost, and which node or rank is to blame."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from taskd import settings
from taskd.cli.log_path import LOG_PATH, check
from taskd.cli.operate import of_job
from taskd.cli.whole_file import whole_file
from taskd.history import files, log_files
from taskd.history.reading import Reader

if TYPE_CHECKING:
    from taskd.history.log_files import Told
    from taskd.history.model import Job
    from taskd.history.report.account import Account, Now

ANSWER = 1.0  # seconds; a manager answers in milliseconds
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}


class Every(click.ParamType):  # type: ignore[type-arg]
    """How often checkpoints are saved: (how many, whether of steps)."""

    name = "STEPS|TIME"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, bool]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)(s|min|h)?", value.strip())
        number = float(found[1]) if found else 0.0
        if found is None or number <= 0 or (not found[2] and "." in found[1]):
            self.fail(
                f"{value!r} is neither a number of steps, as 500, nor a time in s, min or h, as"
                " 30min; both must be greater than 0"
            )
        return (number * UNITS[found[2]], False) if found[2] else (number, True)


class Seconds(click.ParamType):  # type: ignore[type-arg]
    name = "SECONDS"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < 1e9:
            self.fail(f"{value!r} is no number of seconds: allowed is 0 or more")
        return seconds


@click.command()
@of_job
@click.argument("journal", required=False, type=click.Path(path_type=Path))
@LOG_PATH
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page that needs nothing else and loads nothing.",
)
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a trace for https://ui.perfetto.dev.",
)
@click.option(
    "--serve",
    "serve_at",
    is_flag=False,
    flag_value=9680,
    type=click.IntRange(0, 65535),
    metavar="[PORT]",
    help="Serve the page on this machine, at this port (9680), and keep it new while the job runs."
    " Ctrl-C ends it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as one JSON object.")
@click.option(
    "--checkpoint-every",
    type=Every(),
    help="For the comparison with a restart: a checkpoint every so many steps (500) or so much time"
    " (30min). Default: not known, no repeated step is counted for a restart.",
)
@click.option(
    "--restart-seconds",
    type=Seconds(),
    help="For the same: how long a restart takes until all ranks train. Default: as long as this"
    " job took to start.",
)
def command(
    journal: Path | None,
    log_path: Path | None,
    html: Path | None,
    trace: Path | None,
    serve_at: int | None,
    as_json: bool,
    checkpoint_every: tuple[float, bool] | None,
    restart_seconds: float | None,
) -> None:
    """Tell the story of a job: whether it trains now, what happened, what it cost, and which node
    or rank is to blame. As tables, as a page (--html, or --serve while it runs), as JSON, or as a
    trace (--trace).

    It is read from the job's journal in the log directory, of a job that runs, has ended or was
    killed. JOURNAL is a file or a directory; without it, the job's manager is also asked what the
    job does now, and `taskd pause --help` says how it is found. MINDX_TASK_ID chooses among the
    jobs of a directory; without it, it is the one that was written last.

    docs/report.md has the formula of each figure.
    """
    place = journal or log_path or _logs()

    def read_all(logs: bool) -> tuple[Account, int]:
        check(place)
        job, damaged = find(place) if journal is not None else _of_this_job(place)
        now = _now(job.name) if journal is None and job.end is None else None
        around = log_files.of_incidents(_directory(place), job) if logs else {}
        return assumed_account(job, checkpoint_every, restart_seconds, now, around), damaged

    if serve_at is not None:
        if html or trace or as_json:
            raise click.UsageError("--serve goes without --html, --trace and --json")
        from taskd.cli.serve import serve

        serve(lambda: read_all(True)[0], serve_at)
        return
    told, damaged = read_all(html is not None)
    write(told, html, trace)
    if as_json:
        from taskd.history.report.plain import plain

        click.echo(json.dumps(plain(told), indent=1))
    elif html is None and trace is None:
        from rich.console import Console

        from taskd.history.report.table import render

        Console(highlight=False, soft_wrap=True).print(render(told))
    for kind, path in (("report", html), ("trace", trace)):
        if path is not None:
            click.echo(f"{kind}: {path}", err=as_json)
    if damaged:
        click.echo(f"{damaged} lines of the journal are no entries and are skipped", err=True)


def assumed_account(
    job: Job,
    checkpoint_every: tuple[float, bool] | None = None,
    restart_seconds: float | None = None,
    now: Now | None = None,
    logs: Mapping[int, Sequence[Told]] | None = None,
) -> Account:
    """The account, compared with restarts that take so long; None selects the default."""
    from taskd.history.report import account

    every, steps = checkpoint_every or (None, False)
    assumed = account.assumptions(job, every, steps, restart_seconds)
    return account.of_job(job, assumed, now, logs)


def write(told: Account, html: Path | None, trace: Path | None) -> None:
    """Write the page and the trace, each as a whole or not at all. Raises ClickException."""
    if html is not None:
        from taskd.history.report.page import page

        _replace(html, page(told))
    if trace is not None:
        from taskd.history.report.trace import trace as traced

        _replace(trace, json.dumps(traced(told), separators=(",", ":")))


def read(newest: Path) -> tuple[Job | None, int]:
    """The job in a journal, None if it has no entry; and the number of invalid lines. Raises
    OSError."""
    from taskd.history.report import account

    reader = Reader()
    return account.read(reader.files(files.of(newest))), reader.damaged


def find(place: Path) -> tuple[Job, int]:
    """The job of the journal at `place`, a file or a directory, of which the one written last
    counts; and the number of invalid lines. Raises ClickException."""
    return _read(files.newest(place) if place.is_dir() else place, place)


def _of_this_job(directory: Path) -> tuple[Job, int]:
    """The same for the job that the options and the environment name."""
    from taskd.api import finding

    try:
        of = f" of job {settings.job(os.environ)}" if "MINDX_TASK_ID" in os.environ else ""
        of += f" on port {os.environ['TASKD_PORT']}" if "TASKD_PORT" in os.environ else ""
        return _read(finding.journal(os.environ, directory), directory, of)
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None


def _read(newest: Path | None, place: Path, of: str = "") -> tuple[Job, int]:
    try:
        there = newest is not None and newest.exists()
        job, damaged = read(newest) if newest is not None and there else (None, 0)
    except OSError as error:
        raise click.ClickException(f"{place} cannot be read: {error.strerror}") from None
    if job is None:
        raise click.ClickException(
            f"there is no journal{of} in {place}: name the file journal-JOB.jsonl or its"
            " directory, or set --log-path (TASKD_LOG_PATH), --job (MINDX_TASK_ID) or --port"
            " (TASKD_PORT) as the job has them"
        )
    return job, damaged


def _directory(place: Path) -> Path:
    return place if place.is_dir() else place.parent


def _logs() -> Path:
    try:
        return Path(settings.log_settings(os.environ).path)
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None


def _now(job: str) -> Now | None:
    """The answer of that job's manager; None if none answers, or only another job's."""
    from taskd.control import Control, ControlError
    from taskd.history.report.account import Now
    from taskd.protocol.keys import BadSecret

    # without a secret there is no job of ours to ask; its journal may be readable
    with contextlib.suppress(ControlError, BadSecret, settings.BadSetting):
        control = Control()
        try:
            seen = control.overview(timeout=ANSWER)
        finally:
            control.close()
        if seen.job == job:
            return Now(seen.state, seen.detail, seen.step, seen.rate)
    return None


def _replace(path: Path, text: str) -> None:
    try:
        with whole_file(path) as file:
            file.write(text)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from None
