"""`taskd doctor`: checks what a job needs from this machine before it starts.

`examination.py` lists and runs the checks: small functions that get what they examine (environment,
paths, limits) as arguments, return a Finding, and change nothing.
"""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict

import click

COLORS = {"ok": "green", "warning": "yellow", "error": "red"}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class Size(click.ParamType[int]):
    """Bytes, with a unit."""

    name = "size"

    def convert(
        self, value: str | int, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        found = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?) ?([KMGT]?)(?:i?B)?", str(value).strip())
        if found is None:
            self.fail(f"{value!r} is no size; allowed are bytes, and 800M, 12G, 1.5T", param, ctx)
        return int(float(found[1]) * UNITS[found[2]])


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(1, 100_000),
    default=1,
    show_default=True,
    help="How many nodes the job will have.",
)
@click.option(
    "--ranks-per-node",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="How many ranks each node will have.",
)
@click.option(
    "--framework",
    type=click.Choice(("pytorch", "mindspore")),
    help="What the job trains with. Default: what is installed.",
)
@click.option(
    "--state",
    type=Size(),
    metavar="SIZE",
    help="How many bytes parameters and optimizer state of a node's ranks have, each replica"
    " counted once: 12G, 800M. With Adam: three times the parameters.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as one JSON object.")
def command(
    nodes: int, ranks_per_node: int, framework: str | None, state: int | None, as_json: bool
) -> None:
    """Check whether this machine can run a job, and print remedies.

    Run it as the launcher will run: in the same container, as the same user, with the same
    environment. Exit status: 0 no errors (there may be warnings), 1 at least one error.
    """
    # here, because `taskd --help` must not wait for ZeroMQ
    from taskd.cli.doctor import examination

    # the findings report what the checks would log
    logging.getLogger("taskd").addHandler(logging.NullHandler())
    checks = examination.checks(os.environ, nodes, ranks_per_node, framework, state)
    found = examination.examine(checks)
    errors, warnings = (sum(f.state == word for f in found) for word in ("error", "warning"))
    if as_json:
        click.echo(
            json.dumps(
                {"errors": errors, "warnings": warnings, "findings": [asdict(f) for f in found]},
                indent=1,
            )
        )
    else:
        for finding in found:
            word = click.style(f"{finding.state:8}", COLORS[finding.state])
            click.echo(f"{word} {finding.name:14} {finding.found}")
            if finding.remedy:
                click.echo(f"{'':24}remedy: {finding.remedy}")
        click.echo(f"\n{_count(errors, 'error')}, {_count(warnings, 'warning')}")
    if errors:
        raise SystemExit(1)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
