"""`taskd faults`: checks the fault code files, explains a code, lists and releases separated
devices."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import click
from msgspec import to_builtins

from taskd import settings
from taskd.cli import Group
from taskd.cli.log_path import LOG_PATH
from taskd.cli.operate import connected, of_job
from taskd.core.demand import Demand
from taskd.core.job import ladder
from taskd.manager.history.continuity import DEVICE, Continuity
from taskd.mindcluster.faults import codes, configuration, names
from taskd.mindcluster.faults.configuration import Configuration, ConfigurationRefused
from taskd.mindcluster.faults.device import Damaged, Separation, read
from taskd.mindcluster.faults.findings import ERROR, Finding
from taskd.mindcluster.faults.limits import DIALECTS
from taskd.mindcluster.levels import TABLE, Level

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
DIRECTORY = click.option(
    "--config",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help=(
        "Directory with faultCode.json and faultCustomization.json. Default: TASKD_FAULT_CONFIG,"
        " else the tables shipped with taskd."
    ),
)
TABLE_NAME = click.option(
    "--table",
    type=click.Choice(DIALECTS),
    help=(
        "Ranges and defaults of faultCustomization.json: the guide's, or those of newer versions of"
        " the device plugin. Default: TASKD_FAULT_TABLE, else guide."
    ),
)


@click.group(cls=Group)
def command() -> None:
    """Fault codes of devices: check the files, explain a code, release a separated device."""


@command.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@TABLE_NAME
@JSON
def lint(files: tuple[Path, ...], table: str | None, as_json: bool) -> None:
    """Check FILES: faultCode.json, faultCustomization.json, SwitchFaultCode.json, or directories
    with them.

    Exit status: 0 no findings, 1 an entry is skipped or not read as written, 2 a file is unusable.
    """
    found = [finding for file in files for finding in configuration.check(file, _dialect(table))]
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        _show(found)
    raise SystemExit(2 if any(f.severity == ERROR for f in found) else 1 if found else 0)


def _dialect(table: str | None) -> str:
    try:
        return table or settings.fault_table(os.environ)
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None


def _show(found: Iterable[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console, findings = Console(soft_wrap=True, highlight=False), list(found)
    for f in findings:
        # findings quote the file: print them verbatim, never as markup
        console.print(
            Text(f.severity, "bold red" if f.severity == ERROR else "yellow"), Text(str(f))
        )
    if not findings:
        console.print("nothing found", style="green")


@command.command()
@click.argument("code")
@DIRECTORY
@TABLE_NAME
@click.option(
    "--severity",
    type=click.Choice(codes.SEVERITIES),
    help="As the driver reported it; used for codes that no file lists.",
)
@click.option(
    "--strategy",
    help="The job's recover-strategy, joined by commas. Default: the environment's.",
)
@JSON
def explain(
    code: str,
    directory: Path | None,
    table: str | None,
    severity: str | None,
    strategy: str | None,
    as_json: bool,
) -> None:
    """Explain CODE: its level, the rule that sets it, and what would be done about it."""
    try:
        number = names.parse_code(code)
        rungs = ladder.parse(strategy) if strategy else settings.ladder_of_run(os.environ)
        sub_healthy = settings.sub_healthy_strategy(os.environ)
        if settings.sub_healthy_strategies(os.environ)[sub_healthy] == ladder.IGNORE:
            sub_healthy = "ignore"
    except (names.BadCode, ladder.UnknownStrategy, settings.BadSetting) as error:
        raise click.UsageError(str(error)) from None
    lines = _explained(
        number, _load(directory, _dialect(table)), severity or "", rungs, sub_healthy
    )
    if as_json:
        click.echo(json.dumps(lines, indent=1))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(show_header=False, box=None, pad_edge=False)
    shown.add_column(style="bold", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, value in lines.items():
        shown.add_row(name, Text(value))
    Console().print(shown)


def _load(directory: Path | None, dialect: str) -> Configuration:
    try:
        return configuration.load(directory or settings.fault_config(os.environ), dialect)
    except ConfigurationRefused as error:
        for finding in error.findings:
            click.echo(f"{finding.severity}: {finding}", err=True)
        raise click.ClickException("the fault configuration is unusable") from None


def _explained(
    code: str, loaded: Configuration, severity: str, rungs: tuple[str, ...], sub_healthy: str
) -> dict[str, str]:
    rated, rules = loaded.codes.rate(code, severity), loaded.customization
    number = f" ({found})" if (found := TABLE[rated.level].number) else ""
    lines = {
        "code": code,
        "level": f"{rated.level.word}{number}",
        "because": rated.rule,
    }
    lines["what is done"] = done(rated.level, rungs, sub_healthy)
    if (often := rules.frequency.get(code)) is not None:
        release = (
            "" if often.release is None else f", until it has been absent for {often.release:g} s"
        )
        lines["too often"] = (
            f"{often.times} times within {often.window:g} s: {often.level.word}{release}"
            f" ({often.path})"
        )
        lines["what is done then"] = done(often.level, rungs, sub_healthy)
    if (long := rules.duration.get(code)) is not None:
        where = long.path or "the default"
        lines["too long"] = (
            f"more than {long.timeout:g} s: {long.level.word}, until it has been absent for"
            f" {long.recover:g} s ({where})"
        )
        lines["what is done after that"] = done(long.level, rungs, sub_healthy)
    if further := rules.grace.escalations(rated.level):
        lines["if it stays"] = ", ".join(
            f"{level.word} after {seconds:g} s" for seconds, level in further
        )
    return lines


def done(level: Level, rungs: tuple[str, ...], sub_healthy: str) -> str:
    """What a job with these strategies does about a level."""
    rule = TABLE[level]
    if rule.asks is Demand.MOVE_NODE:
        return f"subHealthyStrategy {sub_healthy}: {rule.why}"
    if not rule.rungs:
        return f"{rule.asks.value}: {rule.why}"
    first = next((rung for rung in rule.rungs if rung in rungs), "exit")
    missing = [rung for rung in rule.rungs[: rule.rungs.index(first)] if rung not in rungs]
    without = (
        f" ({', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not configured)"
        if missing
        else ""
    )
    return f"{rule.asks.value}: {rule.why}; strategy {first}{without}"


@command.command()
@of_job
@click.argument("device")
@LOG_PATH
@JSON
def release(device: str, log_path: Path | None, as_json: bool) -> None:
    """Let DEVICE be used again; `taskd faults list` names the ManuallySeparateNPU ones.

    The manager of the job that the environment names forgets what was reported of the device. If no
    manager answers, the release is written to continuity.jsonl in the log directory, which the next
    manager reads.
    """
    from taskd.control import NoManager

    with connected() as control:
        try:
            _released(device, control.release_device(device, timeout=2.0), as_json)
            return
        except NoManager as error:
            unreached = error
    kept, found = _separated(log_path)
    if not kept.path.exists():
        raise click.ClickException(f"{unreached}; and {kept.path} does not exist: set --log-path")
    if device not in found:
        known = ", ".join(sorted(found)) or "none"
        raise click.ClickException(
            f"{device} is not ManuallySeparateNPU in {kept.path}; these are: {known}"
        )
    why = kept.keep(f"{DEVICE}/{device}", None)
    kept.close()
    if why:
        raise click.ClickException(f"{kept.path} cannot be written: {why}")
    text = f"{device} may be used again: written to {kept.path}, no manager answers"
    _released(device, text, as_json)


def _released(device: str, text: str, as_json: bool) -> None:
    click.echo(json.dumps({"device": device, "text": text}) if as_json else text)


@command.command("list")
@LOG_PATH
@JSON
def list_(log_path: Path | None, as_json: bool) -> None:
    """List the ManuallySeparateNPU devices that the manager has left in the log directory."""
    _, found = _separated(log_path)
    if as_json:
        listed = [{"device": name, **to_builtins(entry)} for name, entry in found.items()]
        click.echo(json.dumps(listed, indent=1))
        return
    for name, entry in found.items():
        since = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.since))
        line = f"{name}  since {since}: {entry.text}"
        click.echo("".join(c if c.isprintable() else "?" for c in line))
    if not found:
        click.echo("none")


def _separated(log_path: Path | None) -> tuple[Continuity, dict[str, Separation]]:
    """The file that managers leave, and the separated devices there."""
    try:
        kept = Continuity(log_path or settings.log_settings(os.environ).path)
        values, damaged = kept.load()
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None
    except OSError as error:
        raise click.ClickException(f"{kept.path} cannot be read: {error.strerror}") from None
    found = {}
    for key, value in values.items():
        kind, _, name = key.partition("/")
        try:
            separation = read(value).separated if kind == DEVICE else None
        except Damaged:
            damaged += 1
            continue
        if separation is not None:
            found[name] = separation
    if damaged:
        click.echo(f"{kept.path}: {damaged} lines are damaged and are skipped", err=True)
    return kept, found
