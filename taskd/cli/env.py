"""`taskd env`: the environment of the guides' Table 3, the table of all parameters, and the check
of an environment."""

from __future__ import annotations

import json
import os
import shlex
import textwrap

import click

from taskd import settings


@click.command()
@click.option(
    "--framework", type=click.Choice(settings.FRAMEWORKS), help="Which variables to print."
)
@click.option(
    "--strategy", help=f"For which strategies, joined by commas: {', '.join(settings.COLUMNS)}."
)
@click.option(
    "--hot-switch",
    is_flag=True,
    help="Beside the label subHealthyStrategy: hotSwitch.",
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
    help="Check this environment for values that are not allowed and for contradictions.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    framework: str | None,
    strategy: str | None,
    hot_switch: bool,
    form: str,
    all_parameters: bool,
    check: bool,
    as_json: bool,
) -> None:
    """Print the environment that Ascend Operator injects for these strategies; or list all
    parameters of a job, or check this environment.

    eval "$(taskd env --framework pytorch --strategy retry,recover-in-place)" sets it in a shell.
    Exit status of --check: 1 if something is refused.
    """
    if all_parameters + check + (framework is not None or strategy is not None) != 1:
        raise click.UsageError("give one of: --list; --check; --framework and --strategy")
    if all_parameters:
        _list(as_json)
    elif check:
        _check(as_json)
    elif framework is None or strategy is None:
        raise click.UsageError("--framework and --strategy belong together")
    else:
        _print(framework, strategy, hot_switch, form, as_json)


def _print(framework: str, strategy: str, hot_switch: bool, form: str, as_json: bool) -> None:
    try:
        environment = settings.environment(
            framework, (s.strip() for s in strategy.split(",") if s.strip()), hot_switch
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


def _check(as_json: bool) -> None:
    found = settings.examine(os.environ)
    refused, notices = [str(error) for error in found.refused], found.notices
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
    for section in settings.SECTIONS:
        click.secho(f"{section.title}\n", bold=True)
        for parameter in section.parameters:
            row = parameter.row()
            click.echo(
                f"  {row['name']}  {row['where']}: {row['values']}; default {row['default']}"
            )
            click.echo(textwrap.indent(textwrap.fill(row["meaning"], 90), "      ") + "\n")
