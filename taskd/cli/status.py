"""`taskd status`: what a job is doing now, and its incidents from the manager's journal."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import click

from taskd import settings
from taskd.manager import journal

ANSWER = 1.0  # seconds; a manager answers in milliseconds


@click.command()
@click.option(
    "--log-path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the logs (TASKD_LOG_PATH). Default: ./taskd_log.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print the journal's entries as one JSON array."
)
def command(log_path: Path | None, as_json: bool) -> None:
    """Show what a job is doing now, and its incidents: what broke, what was done, how long each
    phase took.

    Incidents are read from the logs, also of a job that is over. The rest comes from the job's
    manager; `taskd pause --help` says how it is found.
    """
    try:
        directory = log_path or Path(settings.log_settings(os.environ).path)
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None
    path = directory / journal.INCIDENTS
    now = "" if as_json else _now()
    try:
        entries, damaged = read(path)
    except FileNotFoundError:
        if now:
            click.echo(
                f"{now}\nno incident is over yet, or the logs are elsewhere: {path} does not exist"
                " (--log-path)"
            )
            return
        raise click.ClickException(
            f"no job of yours answers, and {path} does not exist: no incident is over yet, or the"
            " logs are elsewhere: set --log-path"
        ) from None
    except OSError as error:
        raise click.ClickException(f"{path} cannot be read: {error.strerror}") from None
    if damaged:
        click.echo(
            f"{path}: {damaged} lines are not entries of a journal and are skipped", err=True
        )
    if as_json:
        click.echo(json.dumps(entries, indent=1))
        return
    if now:
        click.echo(now)
    _show(entries)


def _now() -> str:
    """What the job is doing now; "" if no manager answers."""
    from taskd.control import Control, ControlError
    from taskd.protocol.keys import BadSecret

    try:
        with Control() as control:
            return control.status(timeout=ANSWER)
    except (ControlError, settings.BadSetting, BadSecret):
        return ""


def read(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The journal's entries, oldest first, and how many lines are invalid: a manager may be killed
    while it writes one."""
    entries, damaged = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            entry = json.loads(line)
            if entry["kind"] == "incident":
                usable = {
                    "incident",
                    "ranks",
                    "faults",
                    "strategy",
                    "step",
                    "seconds",
                    "phases",
                    "began",
                } <= entry.keys()
            else:
                usable = entry["kind"] == "end" and {"ok", "reason", "time"} <= entry.keys()
        except (ValueError, TypeError, KeyError, AttributeError):
            usable = False
        if usable:
            entries.append(entry)
        else:
            damaged += 1
    return entries, damaged


def _show(entries: list[dict[str, Any]]) -> None:
    """Print three lines per incident, which fit any terminal; a table of so many columns does
    not."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    jobs = len({e.get("job") for e in entries}) > 1
    if not any(e["kind"] == "incident" for e in entries):
        console.print("no incidents")
    for entry in entries:
        job = f"  job {entry.get('job')}" if jobs else ""
        if entry["kind"] == "end":
            console.print(
                Text(
                    f"{_when(entry['time'])}{job}  {'ended well' if entry['ok'] else 'ended'}:"
                    f" {entry['reason']}"
                )
            )
            continue
        ranks = ",".join(map(str, entry["ranks"]))
        replaced = (
            f"  replaced: {'rank' if len(entry['ranks']) == 1 else 'ranks'} {ranks}"
            if ranks
            else ""
        )
        # a fault's text comes from the nodes: print it verbatim, never as markup
        head = Text(f"{_when(entry['began'])}{job}  incident {entry['incident']}  ")
        head.append(f"{entry['strategy']}  {_ms(entry['seconds'])} ms", style="bold")
        head.append(f"  step {entry['step']}{replaced}")
        console.print(head)
        for fault in entry["faults"]:
            console.print(Text(f"    {fault}"))
        console.print(
            Text(
                "    "
                + "  ".join(
                    f"{phase} {_ms(seconds)}" for phase, seconds in entry["phases"].items()
                ),
                style="dim",
            )
        )


def _when(seconds: float) -> str:
    return time.strftime("%m-%d %H:%M:%S", time.localtime(seconds))


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f}"
