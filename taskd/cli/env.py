"""`taskd env`: the environment of the guides' Table 3, the table of all parameters, and the check
for contradictions."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import click

from taskd import settings
from taskd.settings import Where, job_file

MOST_BYTES = 4 << 20


class _Named(click.ParamType):  # type: ignore[type-arg]
    """NAME=VALUE of a label and the like; a script's argument may be NAME alone."""

    name = "NAME=VALUE"

    def __init__(self, *where: Where) -> None:
        self.where = where

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        name, equals, text = str(value).partition("=")
        refusals = []
        for where in self.where:
            try:
                parameter = settings.parameter_at(name.strip(), where)
            except settings.BadSetting as error:
                refusals.append(str(error))
                continue
            if not equals and where is not Where.SCRIPT:
                self.fail(
                    f"{value!r}: give {name}=VALUE; allowed is {parameter.kind.allowed}", param, ctx
                )
            return parameter.name, text if equals else "on"
        self.fail(refusals[0], param, ctx)


@click.command()
@click.option(
    "--framework", type=click.Choice(settings.FRAMEWORKS), help="Which variables to print."
)
@click.option(
    "--strategy", help=f"For which strategies, joined by commas: {', '.join(settings.COLUMNS)}."
)
@click.option(
    "--format",
    "form",
    type=click.Choice(("shell", "yaml")),
    default="shell",
    show_default=True,
    help="yaml: a container's env.",
)
@click.option(
    "--list",
    "all_parameters",
    is_flag=True,
    help="Show every parameter: its place, its values, its default.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Check this environment, or the job descriptions FILES, with the four options below.",
)
@click.option(
    "--label",
    "labels",
    type=_Named(Where.LABEL),
    multiple=True,
    help="A label of the job: process-recover-enable=on.",
)
@click.option(
    "--annotation",
    "annotations",
    type=_Named(Where.ANNOTATION),
    multiple=True,
    help="An annotation: recover-strategy=retry.",
)
@click.option(
    "--variable",
    "variables",
    type=_Named(Where.ENVIRONMENT),
    multiple=True,
    help="A variable: PROCESS_RECOVER=on.",
)
@click.option(
    "--argument",
    "arguments",
    type=_Named(Where.SCRIPT, Where.LAUNCHER, Where.DEVICE_PLUGIN),
    multiple=True,
    help=(
        "An argument of the training script, the launcher or Ascend Device Plugin:"
        " --enable-worker-reboot, max_restarts=3, hotReset=2."
    ),
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def command(
    framework: str | None,
    strategy: str | None,
    form: str,
    all_parameters: bool,
    check: bool,
    labels: tuple[tuple[str, str], ...],
    annotations: tuple[tuple[str, str], ...],
    variables: tuple[tuple[str, str], ...],
    arguments: tuple[tuple[str, str], ...],
    as_json: bool,
    files: tuple[Path, ...],
) -> None:
    """Print the environment that Ascend Operator injects for these strategies; or list or check the
    parameters of a job.

    eval "$(taskd env --framework pytorch --strategy retry,recover-in-place)" sets it in a shell.
    taskd env --check job.yaml checks each pod template of a Kubernetes job. docs/settings.md has
    what --list prints. Exit status of --check: 1 if something is refused.
    """
    described = dict((*labels, *annotations, *variables, *arguments))
    if (
        all_parameters
        + (check or bool(described) or bool(files))
        + (framework is not None or strategy is not None)
        != 1
    ):
        raise click.UsageError("give one of: --list; --check; --framework and --strategy")
    if all_parameters:
        _list(as_json)
    elif files:
        _check_files(files, described, as_json)
    elif framework is None and strategy is None:
        _check(described, as_json)
    elif framework is None or strategy is None:
        raise click.UsageError("--framework and --strategy belong together")
    else:
        _print(framework, strategy, form, as_json)


def _print(framework: str, strategy: str, form: str, as_json: bool) -> None:
    try:
        environment = settings.environment(
            framework, (s.strip() for s in strategy.split(",") if s.strip())
        )
    except settings.BadSetting as error:
        raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(environment, indent=1))
    # a JSON string is also a YAML string; an unquoted `on` would be a boolean
    elif form == "yaml":
        click.echo(
            "env:\n"
            + "\n".join(
                f"  - name: {name}\n    value: {json.dumps(value)}"
                for name, value in environment.items()
            )
        )
    else:
        click.echo(
            "\n".join(f"export {name}={shlex.quote(value)}" for name, value in environment.items())
        )


def _check(described: dict[str, str], as_json: bool) -> None:
    variables = {
        n: v
        for n, v in os.environ.items()
        if n in settings.PARAMETERS and settings.PARAMETERS[n].where is Where.ENVIRONMENT
    }
    found = settings.examine(variables | described)
    _report([str(r) for r in found.refused], list(found.notices), as_json)


def _check_files(files: tuple[Path, ...], described: dict[str, str], as_json: bool) -> None:
    """Check the pod templates of job descriptions; `described` is set in each of them."""
    refused: list[str] = []
    notices: list[str] = []
    for path in files:
        templates = [t for document in _documents(path) for t in job_file.templates(document)]
        if not templates:
            refused.append(f"{path}: no pod template is in it: give a job with containers")
        for template in templates:
            found, place = settings.examine(template.given | described), f"{path}: {template.place}"
            wrong = [*template.misplaced, *map(str, found.refused)]
            refused += [f"{place}: {text}" for text in wrong]
            notices += [f"{place}: {text}" for text in found.notices]
    _report(list(dict.fromkeys(refused)), list(dict.fromkeys(notices)), as_json)


def _documents(path: Path) -> list[Any]:
    try:
        import yaml
    except ModuleNotFoundError:
        raise click.UsageError(
            "reading a job description needs PyYAML: pip install PyYAML"
        ) from None
    if path.stat().st_size > MOST_BYTES:
        raise click.UsageError(f"{path} is longer than the {MOST_BYTES >> 20} MiB of any job")
    try:
        # an alias would let a few lines stand for gigabytes; no job needs one
        text = path.read_text()
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise click.UsageError(f"{path} has YAML aliases (*name): write them out")
        return list(yaml.safe_load_all(text))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise click.UsageError(f"{path} is not YAML: {str(error)[:500]}") from None


def _report(refused: list[str], notices: list[str], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"refused": refused, "notices": notices}, indent=1))
    else:
        for notice in notices:
            click.echo(f"notice: {notice}")
        for refusal in refused:
            click.echo(refusal, err=True)
        if not refused:
            click.echo("nothing is refused")
    if refused:
        raise SystemExit(1)


def _list(as_json: bool) -> None:
    rows = [{"section": s.title, **p.row()} for s in settings.SECTIONS for p in s.parameters]
    if as_json:
        click.echo(json.dumps(rows, indent=1))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    for section in settings.SECTIONS:
        table = Table(title=section.title, title_justify="left", show_header=False, show_lines=True)
        table.add_column(no_wrap=True)
        table.add_column()
        for row in rows:
            if row["section"] == section.title:
                small = Text(
                    f"\n{row['where']}: {row['values']}; default {row['default']}", style="dim"
                )
                table.add_row(row["name"], Text(row["meaning"]).append(small))
        console.print(table)
